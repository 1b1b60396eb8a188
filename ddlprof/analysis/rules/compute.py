"""Rules about computing: precision, launching kernels, the size of batches, and processors that are shared."""

from __future__ import annotations

import re

from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.rules.switches import cost, passes_s
from ddlprof.analysis.thresholds import (
    ARITHMETIC_FLOPS,
    CRITICAL_SHARE,
    FEW_SAMPLES,
    FINDING_STEPS,
    FORWARD_ALONE,
    FREE_MEMORY_SHARE,
    FULL_CPU_PERCENT,
    FUSED_GAIN,
    FUSED_MEMORY_SHARE,
    FUSED_MODELS,
    LAG_SHARE,
    LAUNCH_US,
    LAUNCHED_KERNELS,
    LAUNCHED_OPERATOR_S,
    LINE_OF_STEP_SHARE,
    LOOP_OF_LOOPS_SHARE,
    LOOP_SAMPLES,
    LOOPED_NODES,
    MICRO_BATCHES,
    NODES_OF_A_LAYER,
    SMALL_OPERATOR_S,
    SPARSE_SLOWER,
    STARVED_SHARE,
    WARN_SHARE,
    WINDOW_STEPS,
)
from ddlprof.base.units import count, either, gib, listed, percent
from ddlprof.model.amounts import SPARSE_NONZERO
from ddlprof.model.operators import ALIGNED_ELEMENTS, UNALIGNED_SLOWER, padded, unaligned_sizes
from ddlprof.model.source_locations import EACH, LOOP, OWN_LOOP

_COMPUTES_SHARE = 0.5
"""A job mostly computes if computing has at least this share of the step."""
_TENSOR_CORES = re.compile(
    r"\b(V100|T4G?|TITAN (V|RTX)|A(2|10|10G|16|30|40|100|800)|[HB][12]00|H20|H800|G[HB]\d00|L(4|20|40)S?|"
    r"RTX( PRO)? ?(A?[2-6]0\d0|A?[4-6]000))(?![0-9])",
    re.IGNORECASE,
)
"""Names, as the driver gives them, of NVIDIA's devices with tensor cores."""


def precision(facts: Facts) -> Issue | None:
    """Finds products in float32 on a device that is much faster in lower precision."""
    share, used = facts.summary.share("compute"), facts.training.precision
    if share is None or share < _COMPUTES_SHARE or used not in ("fp32", "tf32"):
        return None
    if facts.launch_bound or not _TENSOR_CORES.search(facts.device):
        return None
    evidence = f"computing is {percent(share)} of the step, in {used} on {facts.device}"
    older = re.search(r"\b(V100|T4G?|TITAN (V|RTX))\b", facts.device, re.IGNORECASE)
    action = either(
        "mixed precision: torch.autocast with " + ("float16 and GradScaler" if older else "bfloat16"),
        'TF32: torch.set_float32_matmul_precision("high")' if used == "fp32" and not older else None,
    )
    severity = "warning" if used == "fp32" else "info"
    return Issue("tensor cores are not used" if used == "fp32" else "tensor cores work in TF32 only",
                 evidence, action, facts.steady_steps, share, about="compute", severity=severity)  # fmt: skip


def alignment(facts: Facts) -> Issue | None:
    """Finds products in 16 bits whose sizes do not suit tensor cores."""
    step, share = facts.mean_s("step"), facts.summary.share("compute")
    if not step or share is None or share < _COMPUTES_SHARE or facts.model.compiled is not False:
        return None
    if facts.launch_bound or not _TENSOR_CORES.search(facts.device):
        return None
    slow, others, sizes = 0.0, 0.0, set[int]()
    for each in facts.operators:
        if each.phase != "optimizer":
            found = unaligned_sizes(each)
            sizes.update(found)
            takes = cost(facts, each)
            slow, others = slow + UNALIGNED_SLOWER * takes * bool(found), others + takes * (not found)
    gain = passes_s(facts) * slow / (slow + others) * (1 - 1 / UNALIGNED_SLOWER) if slow else 0.0
    if gain < LINE_OF_STEP_SHARE * step:
        return None
    odd = listed([f"{size:,}" for size in sorted(sizes)], most=3)
    evidence = (
        f"products with sizes of {odd}, no multiples of {ALIGNED_ELEMENTS}, take about "
        f"{percent(slow / (slow + others))} of forward and backward, by their operations and bytes"
    )
    action = either(
        f"pad {padded(sizes)} (a vocabulary: the model's vocab_size, or in transformers "
        "model.resize_token_embeddings(pad_to_multiple_of=64))",
        "torch.compile, which pads by itself",
    )
    return Issue("sizes do not suit tensor cores", evidence, action, facts.steady_steps, gain / step, gain_s=gain,
                 about="compute", severity="info")  # fmt: skip


def launch_less(facts: Facts) -> str:
    """Advice for a host that does not launch kernels fast enough."""
    return either(
        'torch.compile(mode="reduce-overhead")' if not facts.model.compiled else "CUDA graphs",
        "fused optimizers (fused=True)",
        "larger batches",
    )


def launch_bound(facts: Facts) -> Issue | None:
    """Finds a device that waits for the host to launch its next kernel."""
    window, step, idle = facts.devices.window, facts.mean_s("step"), facts.waiting_share
    if idle is None:
        return _behind_its_host(facts) if facts.launch_bound else None
    if window is None or window.kernels is None or window.kernel_s is None or not step or idle < WARN_SHARE:
        return None
    evidence = (
        f"{window.kernels:.0f} kernels a step of {1e6 * window.kernel_s:.1f} µs on average; "
        f"for {percent(idle)} of the step none runs"
    )
    action = "; ".join(filter(None, (launch_less(facts), _fusing(facts, idle))))
    return Issue("the device waits for kernels to be launched", evidence, action, window.updates, idle,
                 gain_s=idle * step, about="compute")  # fmt: skip


def _behind_its_host(facts: Facts) -> Issue | None:
    """The issue without a profiler window: it is then known that the device waits, but not for how long."""
    share = facts.summary.share("compute")
    if share is None or share < WARN_SHARE:
        return None
    evidence = f"computing is {percent(share)} of the step, and {waiting_device(facts)}"
    action = launch_less(facts)
    if facts.devices.may_open_windows:
        action += "; --profiler-windows 3 tells how long the device is idle"
    return Issue("the device waits for kernels to be launched", evidence, action, facts.steady_steps, share,
                 about="compute", severity="warning")  # fmt: skip


def waiting_device(facts: Facts) -> str:
    """The sentence about a device that waits for its host."""
    if facts.waiting_share is not None:
        return (
            f"for {percent(facts.waiting_share)} of the step it has nothing to do: it waits for kernels to be launched"
        )
    behind_s = (facts.devices.lag_share or 0.0) * (facts.mean_s("compute") or 0.0)
    return f"the device is at most {1e6 * behind_s:.0f} µs behind the host: it waits for the host to launch kernels"


def _fusing(facts: Facts, idle: float) -> str | None:
    """Advice to train a sweep of such runs as one, with the gain.

    The idle share of a step is the same for any number of models, the rest is not. None for a job of several ranks, if
    memory is not known or too small for two models, or if the gain is small.
    """
    if facts.world_size > 1 or not facts.devices.memory_bytes or not facts.devices.peak_bytes:
        return None
    models = min(FUSED_MODELS, int(FUSED_MEMORY_SHARE * facts.devices.memory_bytes / facts.devices.peak_bytes))
    gain = models / (idle + models * (1 - idle))
    if models < 2 or gain < FUSED_GAIN:
        return None
    return (
        f"{models} runs that differ in hyper-parameters would train as one about {gain:.1f} times as fast: ddlprof fuse"
    )


_IN_PLACE = (
    "one expression on whole tensors in place of the loop at {} (over samples: a batch dimension, torch.vmap; over "
    "time steps: nn.LSTM or nn.GRU in place of cells; over parameters: the optimizer's weight_decay "
    "for squares, torch._foreach_norm), or torch.compile around it",
    "one call in place of the loop at {}, if its modules keep no state between rounds: a module called for each "
    "sample, frame or time step takes all in its batch dimension; heads of attention are one nn.Linear whose output is "
    "reshaped, and scaled_dot_product_attention; convolutions: groups=; other modules that are alike: "
    "torch.func.stack_module_state and torch.vmap; or torch.compile around it",
)
"""Advice for loops of small operators, and for those that call modules which need nothing of each other."""


def python_loop(facts: Facts) -> Issue | None:
    """Finds a loop of the script in which forward or loss is computed in many small operators."""
    loops = [source for source in facts.computing.shares if source.place.what in (LOOP, EACH, OWN_LOOP)]
    nodes, step = facts.model.graph_nodes, facts.mean_s("step")
    if not loops or nodes is None or not step or loops[0].share * facts.computing.samples < LOOP_SAMPLES:
        return None
    loop = loops[0]
    if loop.share < LOOP_OF_LOOPS_SHARE * sum(each.share for each in loops) or facts.model.compiled:
        return None
    if facts.device != "cpu" and not facts.launch_bound:
        return None
    own = loop.place.what == OWN_LOOP and loop.sure
    forward, backward = facts.mean_s("compute_forward") or 0.0, facts.mean_s("compute_backward")
    if own and backward is not None and forward >= FORWARD_ALONE * backward:
        gain, work = forward * loop.share, f"backward takes {percent(backward / forward)} of them"
        action = (
            "what is the same in each step is made once (register_buffer for a mask or positions), the rest is one "
            f"expression on whole tensors in place of the loop at {loop.place.text}"
        )
    else:
        passes = passes_s(facts)
        running = passes * (1 - (facts.host.queued_share or 0.0))
        fewest = max(
            LOOPED_NODES, 0 if own or loop.place.what == EACH else NODES_OF_A_LAYER * (facts.model.layers or 1)
        )
        if nodes < fewest or running > nodes * (facts.training.micro_batches or 1) * SMALL_OPERATOR_S:
            return None
        gain = passes * loop.share
        work = f"the graph of a batch has {count(nodes, 'node')}, of {1e6 * running / nodes:.0f} µs each"
        action = _IN_PLACE[loop.place.what == EACH].format(loop.place.text)
    if gain < WARN_SHARE * step:
        return None
    evidence = (
        f"{percent(loop.share)} of forward and loss are in the loop at {loop.place.text} (of {facts.computing.samples} "
        f"stack samples): {work}"
    )
    return Issue("computing is a loop in Python", evidence, action, facts.steady_steps, gain / step, gain_s=gain,
                 about="compute")  # fmt: skip


def zero_products(facts: Facts) -> Issue | None:
    """Finds products with a matrix of almost only zeros."""
    share, nonzero, step = facts.model.sparse_share, facts.model.sparse_nonzero, facts.mean_s("step")
    line = facts.computing.unknown
    if not share or nonzero is None or line is None or not step or facts.device != "cpu" or facts.model.compiled:
        return None
    flops = (facts.model.forward_flops_per_sample or 0.0) + (facts.model.backward_flops_per_sample or 0.0)
    most = share * flops * (facts.samples_per_step or 0.0) / ARITHMETIC_FLOPS  # else other work is at the line
    gain = min(most, passes_s(facts) * min(share, line.share) * (1 - SPARSE_SLOWER * nonzero))
    if share < _COMPUTES_SHARE or gain < WARN_SHARE * step:
        return None
    evidence = (
        f"{percent(share)} of the operations of forward and backward multiply by a matrix without gradients of which "
        f"{percent(nonzero)} are not zero; {percent(line.share)} of forward and loss is at {line.place.text} (of "
        f"{facts.computing.samples} stack samples)"
    )
    action = (
        "a sparse matrix in place of the dense one, made once, before the loop (adjacency.to_sparse_csr() of a graph, "
        "which @ takes, too), or sums over its entries (index_add_, scatter_add_; nn.EmbeddingBag for counts of words)"
    )
    return Issue("computing multiplies by zeros", evidence, action, facts.steady_steps, gain / step, gain_s=gain,
                 about="compute")  # fmt: skip


def batch_size(facts: Facts) -> Issue | None:
    """Finds large fixed costs of a step while memory for a larger batch is free."""
    step, size, peak = facts.mean_s("step"), facts.devices.memory_bytes, facts.devices.peak_bytes
    if facts.device == "cpu" or not step or not size or peak is None or peak > (1 - FREE_MEMORY_SHARE) * size:
        return None
    moving = facts.moving_s or 0.0
    fixed = (facts.mean_s("compute_optimizer") or 0.0) + moving
    if fixed < CRITICAL_SHARE * step:
        return None
    evidence = (
        f"the update and the exchange of gradients take {facts.scale.time(fixed)} a step whatever the batch; "
        f"{gib(peak)} of {gib(size)} are used"
    )
    return Issue("most of the device's memory is free, and fixed costs are large", evidence,
                 "twice the batch per device, with the learning rate adapted: half the updates for the same samples",
                 facts.steady_steps, fixed / step, gain_s=fixed / 2, severity="info")  # fmt: skip


def micro_batches(facts: Facts) -> Issue | None:
    """Finds micro-batches so small that a pass takes as long as its operators cost whatever they compute."""
    number, step = facts.training.micro_batches or 1, facts.mean_s("step")
    evidence = _few_each(facts)
    gain = passes_s(facts) * (1 - 1 / number)
    if evidence is None or number < MICRO_BATCHES or not step or gain < WARN_SHARE * step:
        return None
    if facts.training.calls_again or repeated_backward(facts) is not None or facts.model.repeated_share is None:
        return None  # the last: not all passes are known to add to one gradient
    action = (
        "larger micro-batches, and fewer of them, where they are parts of what an update takes: the gradient is the "
        "same"
    )
    if facts.training.batch_statistics is not False:
        action += " (but for BatchNorm, whose statistics are then those of more samples)"
    return Issue("micro-batches are too small", evidence, action, facts.steady_steps, gain / step, gain_s=gain,
                 about="compute")  # fmt: skip


def repeated_backward(facts: Facts) -> Issue | None:
    """Finds several losses of one graph, each of which has a backward of its own."""
    share, backward, step = facts.model.repeated_share, facts.mean_s("compute_backward"), facts.mean_s("step")
    if not share or not backward or not step or facts.launch_bound or facts.idles:
        return None
    gain = share * backward
    if gain < LINE_OF_STEP_SHARE * step:
        return None
    passes = facts.training.micro_batches or 1
    evidence = (
        f"{count(passes, 'backward pass', 'backward passes')} a step take {facts.scale.time(backward)}; "
        f"{percent(share)} of their operations are gone through before in the same step, for another loss"
    )
    return Issue("backward goes through the same graph again and again", evidence,
                 "one backward of the sum of all losses, (loss_1 + loss_2).backward(), without retain_graph=True: the "
                 "gradients are the same, where those of single losses are not looked at", facts.steady_steps,
                 gain / step, gain_s=gain, about="compute")  # fmt: skip


def few_samples(facts: Facts) -> Issue | None:
    """Finds batches of so few samples that a step computes as long as its operators cost whatever they compute."""
    number, step, batch = facts.training.micro_batches or 1, facts.mean_s("step"), facts.training.batch_per_rank
    evidence = _few_each(facts)
    gain = (facts.mean_s("compute") or 0.0) / 2
    if evidence is None or number > 1 or (batch or FEW_SAMPLES) >= FEW_SAMPLES or not step or gain < WARN_SHARE * step:
        return None
    return Issue("batches are too small", evidence,
                 "larger batches, with the learning rate adapted: twice the batch is half the updates for the same "
                 "samples", facts.steady_steps, gain / step, gain_s=gain, about="compute",
                 severity="warning")  # fmt: skip


def _few_each(facts: Facts) -> str | None:
    """The evidence that the passes of a step cost what starting their operators does; None: they do not."""
    number = facts.training.micro_batches or 1
    nodes, size, peak = facts.model.graph_nodes, facts.devices.memory_bytes, facts.devices.peak_bytes
    if not nodes or facts.model.compiled:
        return None
    if facts.device != "cpu" and (
        not facts.launch_bound or not size or (peak or size) > (1 - FREE_MEMORY_SHARE) * size
    ):
        return None
    each_s = passes_s(facts) * (1 - (facts.host.queued_share or 0.0)) / (number * nodes)
    if each_s > LAUNCHED_OPERATOR_S:
        return None
    batch = facts.training.batch_per_rank
    of = f" of {count(batch, 'sample')}" if batch is not None else ""
    return (
        f"{count(number, 'backward pass', 'backward passes')}{of} a step; forward and backward take "
        f"{1e6 * each_s:.0f} µs for each of their {number} x {nodes} operators, about what starting it costs for one "
        "sample or many"
    )


def host_contention(facts: Facts) -> Issue | None:
    """Finds ranks that compute with more threads than there are cores for."""
    threads, cores, busy = facts.training.cpu_threads, _free_cores(facts), facts.host.cpu_percent
    waiting = _held_up(facts)
    if not (facts.crowded or waiting) or threads is None or cores is None or busy is None:
        return None
    share, step = facts.summary.share("compute"), facts.mean_s("step")
    if (busy < FULL_CPU_PERCENT and not facts.starved) or share is None or share < _COMPUTES_SHARE:
        return None
    ranks = f"{count(facts.ranks_per_node, 'rank')} with " if facts.ranks_per_node > 1 else ""
    each = " each" if ranks else ""
    free = "" if facts.crowded else " that other work leaves"
    evidence = (
        f"{ranks}{count(threads, 'thread')}{each} on {count(cores, 'core')}{' a rank' if ranks else ''}{free}, "
        f"processors {busy:.0f} % busy"
    )
    if facts.starved:
        evidence += f"; {starved_words(facts)}"
    if waiting:
        evidence += "; in each operator the threads wait for the one that waits"
    action = either(
        f"OMP_NUM_THREADS={cores} or torch.set_num_threads({cores})",
        "fewer ranks on this machine" if facts.ranks_per_node > 1 else None,
        "fewer loader workers" if facts.training.loader_workers else None,
        "end the other work on the machine" if waiting else None,
    )
    harmless = facts.host.queued_share is not None and not facts.starved
    gain = (facts.host.queued_share or 0.0) * (step or 0.0) if waiting else None
    return Issue("threads compete for the processors", evidence, action, facts.steady_steps, about="compute",
                 gain_s=gain, severity="info" if harmless else "warning")  # fmt: skip


def _free_cores(facts: Facts) -> int | None:
    """The cores that other work leaves to a rank which waits for them, at least one; None: not known."""
    cores, others = facts.host.cores_per_rank, facts.host.other_cores
    if cores is None or others is None or not facts.shares_machine:
        return cores
    return max(1, int(cores - others))


def _held_up(facts: Facts) -> bool:
    """Whether other work holds up threads of the training, for which the others wait in each operator."""
    threads, free = facts.training.cpu_threads, _free_cores(facts)
    shared = facts.device == "cpu" and facts.shares_machine
    return shared and threads is not None and free is not None and threads > free


def shared_machine(facts: Facts) -> Issue | None:
    """Finds a training that waits for processors that other work uses."""
    share = facts.host.queued_share
    if share is None or not facts.starved or host_contention(facts) is not None:
        return None
    if facts.late_rank is not None and facts.late_rank.queued_share is not None:
        return None
    return Issue("the training waits for processors", starved_words(facts), free_processors(facts), facts.steady_steps,
                 share, gain_s=share * (facts.mean_s("step") or 0.0), severity="info")  # fmt: skip


def starved_words(facts: Facts) -> str:
    """A sentence that says for how long the training waits for processors."""
    share = percent(facts.host.queued_share or 0.0)
    waits = f"for {share} of the time the training is ready to run and waits for a processor"
    if facts.crowded:
        return waits
    return f"the machine is shared: {waits}" if facts.shares_machine else f"the job's own processes fill it: {waits}"


def free_processors(facts: Facts) -> str:
    """Advice for a training that waits for processors."""
    threads, workers = facts.training.cpu_threads or 1, facts.training.loader_workers or 0
    cores = facts.host.cores_per_rank
    others = facts.shares_machine or facts.crowded
    cost = facts.loader  # workers that wait for storage take no processor
    computing = cost is not None and cost.blocked_s is not None and cost.cpu_s >= cost.blocked_s
    many = cores is not None and workers > cores and computing
    return either(
        f"DataLoader(num_workers={cores}) in place of {workers} (a rank has {count(cores or 0, 'core')})"
        if many
        else None,
        f"OMP_NUM_THREADS={cores}" if facts.crowded else None,
        "end the other work on the machine" if others else None,
        "give the training processors of its own" if others else None,
        "fewer loader workers" if workers and cores is not None and threads + workers > cores and not many else None,
        "fewer ranks on this machine" if facts.ranks_per_node > 1 else None,
        None if others else "a machine with more cores",
    )


_NO_PASSES = (
    "the graph was not read, the model is compiled, or a device does not wait for launches or has used "
    f"{percent(1 - FREE_MEMORY_SHARE)} of its memory"
)
RULES = (
    Rule("precision", "Products in float32 on a device with tensor cores",
         f"computing is {percent(_COMPUTES_SHARE)} of the step",
         "elsewhere faster products would move little", FINDING_STEPS,
         "the precision is not known, or the device is not known to have tensor cores; TF32 is an info", precision),
    Rule("alignment", "Sizes of products do not suit tensor cores",
         f"{percent(LINE_OF_STEP_SHARE)} of the step to gain, in 16 bits, by sizes other than the batch that are no "
         f"multiples of {ALIGNED_ELEMENTS}; computing is {percent(_COMPUTES_SHARE)} of the step",
         f"such a product is taken for {UNALIGNED_SLOWER:g} times as slow, after published steps on an A100; always an "
         "info, since nobody measured it in the run",
         FINDING_STEPS, "the operators were not read, the model is compiled, the device is not known to have tensor "
         "cores, or `launch_bound` speaks", alignment),
    Rule("launch_bound", "The device waits for kernels to be launched",
         f"the device is never further behind the host than {percent(LAG_SHARE)} of computing, in the median step; in "
         f"profiler windows: idle for {percent(WARN_SHARE)} of the step beyond data and other, at least "
         f"{LAUNCHED_KERNELS} kernels a step, of at most {LAUNCH_US:.0f} µs each",
         "launches queue up on a device that has enough to do; a launch takes 3 to 10 µs, so longer kernels hide it",
         WINDOW_STEPS,
         f"fewer than {FINDING_STEPS} steps tell it and there is no window, or the job trains on processors; a window "
         "in which the device is busy is believed", launch_bound),
    Rule("python_loop", "Forward or loss is a loop of the script over small operators",
         f"{percent(WARN_SHARE)} of the step to gain, {LOOPED_NODES} nodes in the autograd graph of a batch, "
         f"{NODES_OF_A_LAYER} for each layer, less than {1e6 * SMALL_OPERATOR_S:.0f} µs for each, and {LOOP_SAMPLES} "
         f"stack samples of forward and loss in one loop, {percent(LOOP_OF_LOOPS_SHARE)} of those in any; if it hands "
         f"nothing from one module to the next: {LOOPED_NODES} nodes; if it calls "
         f"no module and surely has a third of them: as many, or forward and loss that take "
         f"{FORWARD_ALONE:.0f} times as long as backward",
         "a loop over layers has few nodes for each, one over samples or time steps has many; backward goes through "
         "what forward computes, and takes longer, unless most of it has no gradients", FINDING_STEPS,
         "the graph was not read, the model is compiled, or the device has enough to do", python_loop),
    Rule("zero_products", "Products are with a matrix of almost only zeros",
         f"{percent(WARN_SHARE)} of the step to gain, {percent(_COMPUTES_SHARE)} of the operations with a matrix "
         f"without gradients of which {percent(SPARSE_NONZERO)} or less are not zero, and a line with a third of the "
         "stack samples of forwards and losses for certain",
         f"on a processor a number of a sparse matrix took 16 to {SPARSE_SLOWER} times as long as one of a dense one",
         FINDING_STEPS, "the graph was not read, the job trains on a device, or `costly_line` knows the line",
         zero_products),
    Rule("micro_batches", "Micro-batches are too small",
         f"{MICRO_BATCHES} backward passes a step, {percent(WARN_SHARE)} of the step to gain by all of them but one, "
         f"and forward and backward that take at most {1e6 * LAUNCHED_OPERATOR_S:.0f} µs for each node of the graph",
         "such an operator costs hardly more for more samples; two or three passes may be of several losses",
         FINDING_STEPS, "an update has several passes of its own (LBFGS), the gradients of single passes are taken or "
         "differentiated themselves, `repeated_backward` speaks, a weight goes into an autograd.Function of the "
         f"script's, {_NO_PASSES}", micro_batches),
    Rule("repeated_backward", "Each of several losses has a backward of its own through the same graph",
         f"{percent(LINE_OF_STEP_SHARE)} of the step to gain, by the operations that backward goes through again "
         "before the update", "a line is changed in minutes", FINDING_STEPS,
         "the graph was not read, one of the gradients is made (create_graph), or a device waits for launches",
         repeated_backward),
    Rule("few_samples", "Batches of few samples cost what larger ones do",
         f"one backward pass a step, of fewer than {FEW_SAMPLES} samples on a rank, and as much computing for each "
         f"node; half of computing is {percent(WARN_SHARE)} of the step",
         "twice the batch halves it for the same samples; never more than a warning, since it changes the training",
         FINDING_STEPS, _NO_PASSES, few_samples, comes_last=True),
    Rule("batch_size", "Fixed costs are large and memory for larger batches is free",
         f"the update and exposed communication are {percent(CRITICAL_SHARE)} of the step, and "
         f"{percent(FREE_MEMORY_SHARE)} of the device's memory was never used",
         "then twice the batch fits for certain; always an info, since it changes the training", FINDING_STEPS,
         "the job trains on processors, or the memory is not known", batch_size),
    Rule("host_contention", "More threads than cores",
         f"processors {FULL_CPU_PERCENT:.0f} % busy or waited for, and more threads a rank than cores, or than other "
         f"work leaves while the training waits for them; computing is {percent(_COMPUTES_SHARE)} of the step",
         "with fewer threads somebody else keeps the processors busy; an info where the training does not wait for one",
         FINDING_STEPS, "the threads are not known, or the job trains on a device", host_contention, hides=True),
    Rule("shared_machine", "The training waits for processors",
         f"the main thread of a rank waits for one for {percent(STARVED_SHARE)} of its time",
         "as much as any stall that is worth a warning; an info, as it stands beside the cause and does not hide it",
         FINDING_STEPS,
         "it was not counted (only Linux counts it), or `straggler` or `host_contention` says it", shared_machine),
)  # fmt: skip
