"""Rules about what an update of the optimizer does, and what is done to the gradients before it."""

from __future__ import annotations

from collections import defaultdict

from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.rules.switches import cost, passes_s, python_counts
from ddlprof.analysis.thresholds import (
    ENOUGH_HISTORY,
    FEW_ROWS,
    FINDING_STEPS,
    LINE_OF_STEP_SHARE,
    LINE_SAMPLES,
    LOOPED_TENSOR_S,
    LOOPED_TENSORS,
    PENALISED_SHARE,
    WARN_SHARE,
)
from ddlprof.analysis.uncertainty import lowest_share
from ddlprof.base.units import count, percent
from ddlprof.model.operators import ELEMENT_BYTES, FOREACH, FUSED, OPTIMIZER_UPDATES, Operator
from ddlprof.model.source_locations import BETWEEN, PRECONDITIONS, UPDATE

_FOREACH_GAIN = 1 / 3
"""The part of an update that its loop takes on processors beyond the operators, which stay the same with `foreach`."""
_SELDOM = 10
"""In so many updates matrices are decomposed once; papers that do so name 10 to 100."""
_OWN_GAIN = 0.5
"""The part of a loop of small operators that is less with lists of tensors."""
_BESIDE_HISTORY = 4
"""An iteration of L-BFGS has about 15 operators of the size of all weights beside its history, and four for each step
that it keeps."""
_SQUARES = ("pow", "mul")
"""Operators that make squares."""
_ROOTS = ("sqrt", "pow")
"""Operators that make a norm of a sum of squares."""
_SAME_DECAY = ("SGD", "Adam", "Adagrad", "RMSprop")
"""Optimizers of torch's that add weight_decay times the weights to the gradients."""
SPARSE_EMBEDDING = (
    "nn.Embedding(..., sparse=True), and its weight outside of clip_grad_norm_ and in an optimizer of its own "
    "(torch.optim.SparseAdam, or SGD or Adagrad without weight_decay), as others refuse sparse gradients"
)
"""Advice for tables of which a step looks up few rows."""


def optimizer_loop(facts: Facts) -> Issue | None:
    """Finds an update that goes through the parameters one after the other."""
    tensors, step, update = facts.training.optimizer_tensors, facts.mean_s("step"), facts.mean_s("compute_optimizer")
    switch, name = facts.training.optimizer_switch, facts.training.optimizer
    if not step or not update or not name:
        return None
    if facts.training.optimizer_loops is None:
        return _own_loop(facts, update, step)
    if not facts.training.optimizer_loops or not switch:
        return None
    known = OPTIMIZER_UPDATES.get(name.lower())
    gain = 0.0
    if switch == FUSED and known is not None and known.fused:
        gain = update * (1 - known.fused / known.foreach)
    elif switch == FOREACH and (tensors or 0) >= LOOPED_TENSORS:
        gain = update * _FOREACH_GAIN
    if gain < LINE_OF_STEP_SHARE * step:
        return None
    evidence = (
        f"the update takes {facts.scale.time(update)} of a step: {name} goes through "
        f"{count(tensors or 0, 'parameter')} one after the other"
    )
    return Issue("the optimizer is a loop in Python", evidence,
                 f"torch.optim.{name}(..., {switch}=True): the same update in one call", facts.steady_steps,
                 gain / step, gain_s=gain, about="compute", part="compute_optimizer")  # fmt: skip


def _own_loop(facts: Facts, update: float, step: float) -> Issue | None:
    """The issue of an optimizer of the script's own, by the samples of the loops that it was in."""
    loop = next((source for source in facts.updating.shares if source.sure and source.place.what == UPDATE), None)
    tensors = facts.training.optimizer_tensors or 0
    if loop is None or tensors < LOOPED_TENSORS or update > tensors * LOOPED_TENSOR_S:
        return None
    gain = update * loop.share * _OWN_GAIN
    if gain < LINE_OF_STEP_SHARE * step:
        return None
    evidence = (
        f"the update takes {facts.scale.time(update)} of a step, {percent(loop.share)} of it in the loop at "
        f"{loop.place.text} over {count(tensors, 'parameter')} (of {facts.updating.samples} stack samples)"
    )
    return Issue("the optimizer is a loop in Python", evidence,
                 "the same operations on lists of all parameters at once (torch._foreach_mul_, torch._foreach_add_), "
                 "or an optimizer of torch's with fused=True", facts.steady_steps, gain / step, gain_s=gain,
                 about="compute", part="compute_optimizer")  # fmt: skip


def gradient_loop(facts: Facts) -> Issue | None:
    """Finds a loop of the script over the gradients, between backward and update."""
    step, update, tensors = facts.mean_s("step"), facts.mean_s("compute_optimizer"), facts.training.optimizer_tensors
    after = facts.after_backward
    loops = [each for each in after.shares if each.place.what == BETWEEN]
    line = next((each for each in [*loops, *after.wider] if each.sure and each.place.what == BETWEEN), None)
    if not step or not update or line is None or (tensors or 0) < LOOPED_TENSORS or tensors is None:
        return None
    share = sum(each.share for each in loops)
    awake = 1 - (facts.host.queued_share or 0.0)
    gain = update * share * _OWN_GAIN
    if update * awake > tensors * LOOPED_TENSOR_S or gain < LINE_OF_STEP_SHARE * step:
        return None
    evidence = (
        f"{facts.scale.time(update * share)} of a step are in loops of the script between backward and update, most "
        f"at {line.place.text}, for {count(tensors, 'parameter')} (of {after.samples} stack samples)"
    )
    return Issue("gradients are gone through in a loop in Python", evidence,
                 "all gradients at once: torch.nn.utils.clip_grad_norm_(model.parameters(), most), or "
                 "torch._foreach_norm and torch._foreach_mul_ on the list of them, and one .item() for all",
                 facts.steady_steps, gain / step, gain_s=gain, about="compute", part="compute_optimizer")  # fmt: skip


def preconditioner(facts: Facts) -> Issue | None:
    """Finds lines of the script that decompose matrices for an update, all such lines together."""
    step, update, after = facts.mean_s("step"), facts.mean_s("compute_optimizer"), facts.after_backward
    lines = [(part, each.place.text) for each in after.shares if (part := each.of(PRECONDITIONS))]
    share = sum(part for part, _ in lines)
    if not step or not update or not lines or not python_counts(facts):
        return None
    if lowest_share(share * after.samples, after.samples) * update < LINE_OF_STEP_SHARE * step:
        return None
    gain = update * share * (1 - 1 / _SELDOM)
    evidence = (
        f"{percent(share)} of {facts.scale.time(update)} in the update is decomposing or inverting matrices, most at "
        f"{max(lines)[1]} (of {after.samples} stack samples)"
    )
    action = (
        f"decompose in every {_SELDOM}th update only, or less often, and keep what comes of it until then (the "
        "precondition frequency of Shampoo, SOAP and K-FAC): they change slowly; see that the loss falls as before"
    )
    return Issue("the update decomposes matrices", evidence, action, after.samples, gain / step, gain_s=gain,
                 about="compute", part="compute_optimizer", severity="warning")  # fmt: skip


def long_history(facts: Facts) -> Issue | None:
    """Finds updates that go through a long history of gradients, as those of LBFGS do."""
    step, update = facts.mean_s("step"), facts.mean_s("compute_optimizer")
    history, passes = facts.training.optimizer_history or 0, facts.training.passes_in_update or 1
    iterations = max(1, passes * facts.steady_steps)
    most = min(history, iterations)
    kept = most - most * most / (2 * iterations)  # on average: each iteration keeps one more, until there are most
    if not step or not update or kept <= 2 * ENOUGH_HISTORY:
        return None
    gain = update * (kept - ENOUGH_HISTORY) / (kept + _BESIDE_HISTORY)
    if gain < WARN_SHARE * step:
        return None
    evidence = (
        f"the update takes {facts.scale.time(update)} of a step beside its up to {count(passes, 'pass', 'passes')}: in "
        f"each of its iterations {facts.training.optimizer} goes through the steps and gradients that it keeps, on "
        f"average at most {kept:.0f} of them"
    )
    action = (
        f"history_size={ENOUGH_HISTORY} in place of {history}, and as many iterations as lower the loss (max_iter); "
        "see that it falls as before"
    )
    return Issue("the update goes through a long history", evidence, action, facts.steady_steps, gain / step,
                 gain_s=gain, about="compute", part="compute_optimizer", severity="warning")  # fmt: skip


def dense_embedding(facts: Facts) -> Issue | None:
    """Finds updates of all rows of an embedding of which a batch uses few."""
    step, update = facts.mean_s("step"), facts.mean_s("compute_optimizer")
    updated = sum(each.shape[0] * each.count for each in facts.operators if each.kind == "optimizer")
    plain = facts.training.strategy in (None, "none", "ddp") and may_be_sparse(facts)
    if not step or not update or not updated or not plain:
        return None
    unused, rows, used = unused_rows(facts)
    share = min(1.0, unused / updated)
    if share * update < LINE_OF_STEP_SHARE * step:
        return None
    evidence = (
        f"the update takes {facts.scale.time(update)} a step, {percent(share)} of it for rows of embeddings that no "
        f"sample of the step looks up: of {rows:,} rows at most {used:,}"
    )
    action = f"{SPARSE_EMBEDDING}: it moves the rows of the step only, so that others keep their momentum"
    return Issue("the update goes through all rows of an embedding", evidence, action, facts.steady_steps,
                 share * update / step, gain_s=share * update, about="compute")  # fmt: skip


def weight_penalty(facts: Facts) -> Issue | None:
    """Finds a term of the loss that goes through the weights, such as the sum of their squares."""
    step, sizes = facts.mean_s("step"), _penalised(facts)
    updated = sum(each.shape[0] * each.count for each in facts.operators if each.kind == "optimizer")
    weights = sum(size * times for size, times in sizes.items())
    if not step or facts.launch_bound or facts.model.compiled or weights < max(1, PENALISED_SHARE * updated):
        return None
    whole = own = 0.0
    for each in facts.operators:
        if each.phase != "optimizer":
            whole += cost(facts, each)
            own += cost(facts, each) * (_is_of_weights(each) and each.shape[0] in sizes)
    gain = passes_s(facts) * own / whole
    if gain < WARN_SHARE * step:
        return None
    evidence = (
        f"{weights:,.0f} of {updated:,.0f} weights go into sums of powers in each forward; these take about "
        f"{percent(own / whole)} of forward and backward, by operations and bytes"
    )
    name = facts.training.optimizer
    if name in _SAME_DECAY:
        action = f"if these are squares, weight_decay of {name} in place of the term, twice what each square is "
        action += "multiplied by: the same gradients, unless they are clipped, which comes before it"
    else:
        action = "if these are squares, torch._foreach_add_(gradients, weights, alpha=2 * factor) in place of the "
        action += "term, right after backward under torch.no_grad(): the same gradients; so has weight_decay of "
        action += f"{', '.join(_SAME_DECAY)}, but not that of AdamW"
    return Issue("a term of the loss goes through the weights", evidence, action, facts.steady_steps, gain / step,
                 gain_s=gain, about="compute")  # fmt: skip


def _penalised(facts: Facts) -> dict[int, float]:
    """How many weights, by their size, go into sums of squares in forwards: as many sums to one number as squares, and
    nothing else, as of a normalised weight. None where a root is taken of a number: it may be a norm."""
    sums, squares, others = (defaultdict[int, float](float) for _ in range(3))
    roots = 0.0
    for each in facts.operators:
        if each.phase != "forward" or not _is_of_weights(each):
            continue
        is_sum = each.name == "sum" and each.shape[1:] == (1,)
        if each.shape[0] == 1:
            roots += each.count * ((each.name in _ROOTS) - is_sum)  # squares of weights of one number are summed, too
        else:
            (sums if is_sum else squares if each.name in _SQUARES else others)[each.shape[0]] += each.count
    if roots > 0:
        return {}
    return {size: times for size, times in sums.items() if squares[size] == times and not others[size]}


def _is_of_weights(operator: Operator) -> bool:
    """Whether an operator computes from parameters alone."""
    return operator.kind in ("elementwise", "reduction") and operator.grows is None


def may_be_sparse(facts: Facts) -> bool:
    """Whether sparse gradients need not go over a backend that refuses them, as NCCL does."""
    return facts.world_size == 1 or facts.training.backend in ("gloo", "cpu:gloo")


def unused_rows(facts: Facts) -> tuple[float, int, int]:
    """The elements of embeddings in rows that no sample of a step of any rank looks up, and of the largest of these
    tables its rows and those that a step looks up at most.

    Tables of one size count as one, as several lookups of one table cannot be told from them.
    """
    lookups, times = defaultdict[tuple[int, int], float](float), facts.world_size * (facts.training.micro_batches or 1)
    for each in facts.operators:
        if each.name == "embedding_dense_backward" and each.fixed_bytes:
            width = each.shape[1]
            rows = round(each.fixed_bytes / (width * ELEMENT_BYTES.get(each.dtype, 4)))
            lookups[rows, width] += each.shape[0] * each.count * times
    # A table that is also the weight of a product, as in language models, has gradients in all rows.
    products = [set(each.shape) for each in facts.operators if each.flops]
    tables = [
        (rows, round(used), width)
        for (rows, width), used in lookups.items()
        if rows >= FEW_ROWS * used and not any({rows, width} <= product for product in products)
    ]
    largest = max(tables, default=(0, 0, 0))
    return sum((rows - used) * width for rows, used, width in tables), *largest[:2]


RULES = (
    Rule("optimizer_loop", "The update is a loop over the parameters", f"{percent(LINE_OF_STEP_SHARE)} of the step to "
         "gain, by what the operators of both forms read and write", "a switch is changed in minutes", FINDING_STEPS,
         "the optimizer has neither a fused nor a foreach form, or is not torch's and no loop of its own was seen",
         optimizer_loop),
    Rule("gradient_loop", "The script goes through the gradients in a loop",
         f"{percent(LINE_OF_STEP_SHARE)} of the step to gain, by the stack samples between backward and update, a "
         f"third of them for certain in one loop or from one line; {LOOPED_TENSORS} parameters, less than "
         f"{1e6 * LOOPED_TENSOR_S:.0f} µs for each", "with more for each, its operators take the time, not the loop",
         FINDING_STEPS, f"fewer than {LINE_SAMPLES} stack samples were taken, or no loop has a third for certain",
         gradient_loop),
    Rule("preconditioner", "The update decomposes matrices at a line of the script",
         f"{percent(LINE_OF_STEP_SHARE)} of the step, for certain at all such lines together, by the stack samples "
         "after the backward and in the optimizer", "what is decomposed is a mean over many steps, and changes slowly; "
         "never more than a warning, since an update in between is another one", FINDING_STEPS,
         f"fewer than {LINE_SAMPLES} stack samples were taken, or the device has enough to do", preconditioner),
    Rule("long_history", "The update goes through a long history of gradients",
         f"{percent(WARN_SHARE)} of the step to gain from a history of {ENOUGH_HISTORY}, where more than twice as many "
         "steps and gradients are kept on average: `history_size`, or fewer where a run has fewer passes",
         "L-BFGS goes through all of it twice in each iteration, and 3 to 20 are usual (Nocedal and Wright, Numerical "
         "Optimization); never more than a warning, since a shorter one is another update", FINDING_STEPS,
         "the optimizer has no `history_size`", long_history, comes_last=True),
    Rule("weight_penalty", "A term of the loss goes through the weights",
         f"{percent(WARN_SHARE)} of the step to gain, by the operations and bytes of operators that compute from "
         f"parameters alone, and sums of squares of {percent(PENALISED_SHARE)} of the weights that "
         "an update changes",
         "products are taken to do as many operations in the time of a byte as one core, which rather says too little",
         FINDING_STEPS, "the operators were not read, the model is compiled, or a device waits for launches",
         weight_penalty),
    Rule("dense_embedding", "The update goes through all rows of an embedding",
         f"{percent(LINE_OF_STEP_SHARE)} of the step to gain, by the elements of tables of which a step of all ranks "
         f"looks up less than one row in {FEW_ROWS}; tables of one size count as one",
         "moments and weights of all rows are read and written for a few", FINDING_STEPS,
         "the operators were not read, the table is also the weight of a product, parameters are divided among the "
         "ranks, or several ranks have another backend than gloo", dense_embedding, comes_last=True),
)  # fmt: skip
