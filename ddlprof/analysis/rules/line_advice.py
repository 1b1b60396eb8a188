"""Words and advice for a line of the script by what it does."""

from __future__ import annotations

from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.sources import SourceShare
from ddlprof.model import source_locations

_LIBRARY = "a library that does the same in this process (soundfile for sounds, PyAV for videos)"
_ONE_POOL = "of processes one pool for all, made before the loop"
AT_LINE = {
    source_locations.OPENS: "open the file once (for each worker, the first time that it is needed), and keep it open",
    source_locations.LISTS: "a tensor of one array, not of a list: torch.from_numpy(np.stack(arrays)), or numbers "
    "computed as an array",
    source_locations.DRAWS: "from a list or an array, as a deque walks to each item; numbers without permuting all "
    "there is: np.random.default_rng().choice(n, k, replace=False), or np.random.randint where one may come twice",
    source_locations.TOKENISES: "tokenise once, before the training, and keep the numbers",
    source_locations.DECODES: "decode and resize once, before the training, and keep the small images",
    source_locations.TABLES: "take the columns out of the table once, in __init__ or before the loop: "
    "table[column].to_numpy(), and rows that are searched for as groups: dict(list(table.groupby(key)))",
    source_locations.QUERIES: "read all rows once into an array, in __init__ or before the training; else all rows of "
    "a batch in one query (__getitems__), and an index on the column that is searched (CREATE INDEX)",
    source_locations.PARSES: "parse once, before the training, and keep arrays (np.save, Parquet, Arrow)",
    source_locations.SEARCHES: "list the files once, in __init__, and keep the list",
    source_locations.READS: "if it is one file for all samples: read it once, in __init__, and keep its lines, or only "
    "where each begins (file.tell()), to seek to the one that is asked for; if each sample has its own: read all once, "
    "before the training, into one file or array",
    source_locations.UNPACKS: "if it is compressed: unpack once, before the training, and keep the data as they are "
    "used (np.save in place of np.savez_compressed; of HDF5 and Zarr a whole chunk is unpacked for one row of it)",
    source_locations.FINDS: "a dict that is made once ({value: n for n, value in enumerate(values)}) in place of a "
    "search through a list (list.index, in)",
    source_locations.LOCKS: "without the lock where nobody writes (each worker and rank opens the file for itself, "
    "read-only), or held for the writing alone: more workers would wait for it, too",
    source_locations.TURNS: "under the lock or semaphore only what must be done in turns: more workers would wait for "
    "it, too",
    source_locations.COPIES: "copy only what is changed: dict(record) or copy.copy in place of copy.deepcopy, numbers "
    "in arrays",
    source_locations.ASKS: "arrays or tensors in shared memory (tensor.share_memory_(), np.memmap) in place of a dict "
    "or list of multiprocessing.Manager, whose process is asked for each sample",
    source_locations.PROGRAMS: f"start no program or process anew each time: {_LIBRARY}, or once, before the training, "
    f"with the results kept; {_ONE_POOL}",
    source_locations.PER_SAMPLE: "take whole batches by their indices: where the data set takes a list of them "
    "(TensorDataset, arrays), DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), N, False)); "
    "else __getitems__ in it",
    source_locations.NESTED: "one ConcatDataset([a, b, c]) of the list of all data sets in place of sums of two "
    "(a + b + c, functools.reduce), and one Subset in place of a Subset of a Subset: in a chain each is asked for each "
    "sample",
}
"""Advice where data is read or drawn, by the words of `ddlprof.model.source_locations`."""
LESS_ROLLOUT = (
    "collect with larger batches, with an inference engine, or in other processes while the training goes on; if it is "
    "to evaluate: less often, or on fewer samples"
)
_ONCE_OR_LESS = (
    "what is the same in each step can be done once, before the loop, and what the step need not wait for less often, "
    "or in another process"
)
AT_ANY_LINE = {
    source_locations.EVALUATION: ("evaluating at", "evaluate less often, on fewer batches, or in another process"),
    source_locations.FORWARD: (
        "in a forward pass at",
        "see whether every step needs this forward pass",
    ),
    source_locations.ROLLOUT: ("acting or generating at", LESS_ROLLOUT),
    source_locations.CHECKPOINT: ("saving at", "save less often, or in the background"),
    source_locations.LOGGING: (
        "logging at",
        "log less often, such as in every 100th step, or in another thread or process",
    ),
    source_locations.PLOT: ("plotting at", "plot less often: keep the numbers, and draw them once an epoch"),
    source_locations.METRIC: (
        "computing a metric at",
        "add to the metric in every step (update), and compute it once an epoch: what grows with the steps takes ever "
        "longer",
    ),
    source_locations.COPY: (
        "copying at",
        "copy only the states that are needed, and less often; an average of weights in place "
        "(torch._foreach_lerp_, torch.optim.swa_utils.AveragedModel); weights of a task without a copy of the model "
        "(torch.func.functional_call)",
    ),
    source_locations.COLLECT: (
        "collecting garbage at",
        "call gc.collect() only at checkpoints or in every 100th step, after gc.freeze() before the loop",
    ),
    source_locations.WRITES: (
        "writing at",
        "write only what is new (a line that is added to an open file: JSON Lines, CSV), less often, or by another "
        "thread: a file that is written anew with all that was before takes ever longer",
    ),
    source_locations.JOINS: (
        "joining arrays or tensors at",
        "if what was joined before is joined again: a list that is joined once, after the loop, or one tensor of the "
        "final size that is filled by slices, as all of it is copied each time",
    ),
    source_locations.MAKES_GROUPS: (
        "making a process group at",
        "make each process group once, before the loop (new_group returns it): all ranks wait for each other meanwhile",
    ),
    source_locations.RESULT: ("waiting for a result at", "ask for results (.item()) only in the steps that show them"),
    source_locations.SLEEP: ("sleeping at", "do without the sleep, or wait in another thread"),
    source_locations.NETWORK: (
        "waiting for the network at",
        "ask in another thread while the training goes on (concurrent.futures.ThreadPoolExecutor), several values in "
        "one request, or less often, such as in every 100th step",
    ),
    source_locations.ENVIRONMENT: (
        "in the environment at",
        "run several environments at once, in processes of their own",
    ),
    source_locations.LIBRARY: (
        "in",
        "see what the library does there in every step, and which option makes it do so less often",
    ),
    source_locations.OWN_LOOP: (
        "in the loop at",
        "whole arrays or tensors in place of this loop (over samples: a batch dimension; over parameters: "
        f"torch._foreach_norm, torch._foreach_lerp_); {_ONCE_OR_LESS}",
    ),
    source_locations.PARAMETRIZED: (
        "computing a weight anew in the loop at",
        "with torch.nn.utils.parametrize.cached(): around the forward: each weight is computed once in it",
    ),
    source_locations.DECOMPOSES: (
        "decomposing matrices at",
        "what needs no decomposition, or a cheaper one (Independent(Normal(mean, std), 1) in place of "
        "MultivariateNormal with a diagonal matrix, svdvals for the values alone, solve in place of inv, "
        "torch.nn.utils.parametrizations.spectral_norm for the largest value), all matrices of one shape in one call, "
        "or a term of the loss in every Nth step only, with N times its weight",
    ),
    source_locations.DERIVES: (
        "computing gradients at",
        "if it is a penalty: in every 16th step only, with 16 times its weight (lazy regularisation), or on a part of "
        "the batch; gradients of several outputs at once (torch.func.vmap, is_grads_batched=True)",
    ),
    source_locations.DERIVES_EACH: (
        "computing gradients in the loop at",
        "where none needs the one before, all in one call: over samples torch.func.vmap(torch.func.grad(loss)) with "
        "torch.func.functional_call, over outputs of one graph torch.autograd.grad(..., is_grads_batched=True), over "
        "parameters one call with the list of them",
    ),
    source_locations.ONE_HOT: (
        "making one-hot vectors at",
        "the numbers themselves: nn.Embedding, or weight[numbers], in place of a product with one-hot vectors, and "
        "cross_entropy or gather for a choice of columns",
    ),
    **{work: ("at", AT_LINE[work]) for work in source_locations.data_work()},
    source_locations.PROGRAMS: (
        "waiting for a program or process at",
        "a program in the background (subprocess.Popen, asked for its result only where needed), or less often; "
        f"{_ONE_POOL}",
    ),
    # Looks at a list that Python makes may fall on the end of it, which lets the interpreter's lock go.
    source_locations.LISTS: (
        "at",
        f"{AT_LINE[source_locations.LISTS]}; if making the list takes long: {_ONCE_OR_LESS}",
    ),
    "": ("at", f"see what this line does: {_ONCE_OR_LESS}"),
}
"""Words for the line on which most of `other` is spent, by the kind of work: how to say it, and what to do."""

_BESIDE = "less often, or in another thread or process while the training goes on"
BETWEEN = {
    "": f"see what this line does: {_BESIDE}; if it is a loop of Python, whole arrays (argsort, cumsum)",
    source_locations.NETWORK: _BESIDE,
    source_locations.LISTS: AT_LINE[source_locations.LISTS],
    source_locations.COLLECT: "collect less often, after gc.freeze() before the loop",
    source_locations.OWN_LOOP: "whole arrays or tensors in place of this loop (argsort, cumsum, all pairs compared at "
    "once), fewer samples, or less often",
    **dict.fromkeys(
        (source_locations.METRIC, source_locations.PLOT, source_locations.RESULT, source_locations.LOGGING,
         source_locations.LIBRARY),
        "fewer samples, a faster implementation of it, or less often",
    ),
}  # fmt: skip
"""Advice for what a line does beside the steps, where that of `AT_ANY_LINE` is about every step."""

ONCE_FOR_ALL = "what is the same for each phase (reading and preparing the data): once, before the first of them"
MAY_LOAD = ("", source_locations.OWN_LOOP, *source_locations.data_work())
"""Words of lines that may make batches, as far as is known."""
_ROWS = "rows of one tensor by their numbers (rows[chosen]) in place of a list or deque of samples"
_LOADER = "if a batch is made there: {}, or workers of a DataLoader beside computing"
"""Advice for a line that does such work in a loop which loads its batches itself. Nothing tells whether another line
makes a batch."""


def main_line(facts: Facts) -> SourceShare | None:
    """The place where most of `other` is spent; None if that is not sure."""
    return facts.sources.main


def words_for_line(facts: Facts, line: SourceShare) -> tuple[str, str]:
    """Words for what happens at a line, and the advice."""
    told, action = AT_ANY_LINE.get(line.place.what, AT_ANY_LINE[""])
    if line.place.what in source_locations.data_work() and facts.summary.mean_ns("data") is None:
        action += f"; {_LOADER.format(_LIBRARY if line.place.what == source_locations.PROGRAMS else _ROWS)}"
    return f"{told} {line.place.text}", action
