"""Rules about switches: what one line of the script turns on or off, and what that makes computing take longer."""

from __future__ import annotations

import math

from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.thresholds import (
    ANOMALY_NODE_S,
    ANOMALY_SHARE,
    ARITHMETIC_FLOPS,
    CPU_FLOPS_PER_BYTE,
    FINDING_STEPS,
    FLOPS_PER_BYTE,
    FREE_CPU_PERCENT,
    FREE_MEMORY_SHARE,
    LINE_OF_STEP_SHARE,
    SUBNORMAL_TIMES,
    THREAD_BUSY_SHARE,
    THREADED_OPERATOR_S,
    WARN_SHARE,
)
from ddlprof.base.units import count, either, gib, percent, significant
from ddlprof.model.manifest import (
    BLOCKING,
    DETAIL,
    PROFILER,
    SUBNORMAL_GRADIENTS,
    SUBNORMAL_STATES,
    TRACEMALLOC,
)
from ddlprof.model.operators import Operator

_COMPUTES_SHARE = 0.5
"""A job mostly computes if computing has at least this share of the step."""
_NODES_OF_A_LAYER = 5
"""Those of a linear layer with its bias and an activation."""
_HALVES = {"bf16": "bfloat16", "fp16": "float16"}
"""Types of 16 bits by their names in the manifest."""


def _computes(facts: Facts) -> bool:
    return (facts.summary.share("compute") or 0.0) >= _COMPUTES_SHARE and not facts.idles


def passes_s(facts: Facts) -> float:
    """Seconds of a step in computing without the update: forward, loss and backward."""
    return max(0.0, (facts.mean_s("compute") or 0.0) - (facts.mean_s("compute_optimizer") or 0.0))


def cost(facts: Facts, operator: Operator) -> float:
    """What all calls of an operator in a micro-batch take: in bytes, or operations as so many bytes if that is more."""
    flops_per_byte = CPU_FLOPS_PER_BYTE if facts.device == "cpu" else FLOPS_PER_BYTE
    return operator.count * max(operator.flops / flops_per_byte, operator.bytes)


def padding(facts: Facts) -> Issue | None:
    """Finds tokens of padding that are computed like any other."""
    share, tokens, step = facts.training.padding_share, facts.training.tokens_per_sample, facts.mean_s("step")
    if share is None or not step or not _computes(facts) or facts.launch_bound:
        return None
    gain = share * passes_s(facts)
    if gain < WARN_SHARE * step:
        return None
    length = f"of {tokens:,.0f} tokens a sample " if tokens else ""
    evidence = f"{percent(share)} {length}are padding, on which the model computes as on text"
    action = either(
        'pad to the longest sample of its batch (padding="longest")' if tokens is None or tokens % 1 == 0 else None,
        "batch samples of similar length",  # a mean that is no whole number is one of batches of several lengths
        "pack several into one row",
    )
    return Issue("most of what is computed is padding" if share > 0.5 else "much of what is computed is padding",
                 evidence, action, facts.steady_steps, gain / step, gain_s=gain, about="compute")  # fmt: skip


def ignored_labels(facts: Facts) -> Issue | None:
    """Finds logits of tokens whose labels the loss leaves out."""
    share, tokens, step = facts.training.ignored_share, facts.training.tokens_per_sample, facts.mean_s("step")
    if not share or not tokens or not step or not _computes(facts) or facts.launch_bound:
        return None
    fewest = (1 - share / 2) * tokens * (facts.training.batch_per_rank or math.inf)  # else some were left out before
    passes = [each for each in facts.operators if each.phase in ("forward", "backward")]
    shapes = [each.shape for each in passes if each.name.endswith("log_softmax") and each.shape[0] >= fewest]
    rows, columns = max(shapes, key=lambda shape: shape[1], default=(0, 0))
    head = [each for each in passes if each.kind in ("product", "softmax") and {rows, columns} <= set(each.shape)]
    flops, moved = sum(each.flops * each.count for each in passes), sum(each.bytes * each.count for each in passes)
    if not head or not flops or not moved:
        return None
    by_flops = sum(each.flops * each.count for each in head) / flops
    gain = share * min(by_flops, sum(each.bytes * each.count for each in head) / moved) * passes_s(facts)
    if gain < WARN_SHARE * step:
        return None
    evidence = (
        f"{percent(share)} of the labels are -100, which the loss leaves out; {columns:,} logits are computed for each "
        f"of {rows:,} tokens all the same"
    )
    action = (
        "choose the tokens that have a label before the last layer: chosen = (labels != -100).flatten(), then "
        "head(hidden.flatten(0, 1)[chosen]) and labels.flatten()[chosen], where nothing else needs the others' logits"
    )
    return Issue("logits are computed where no label is", evidence, action, facts.steady_steps, gain / step,
                 gain_s=gain, about="compute")  # fmt: skip


def anomaly_mode(facts: Facts) -> Issue | None:
    """Finds autograd's anomaly mode left on."""
    share, step = facts.training.anomaly_share, facts.mean_s("step")
    if share is None or share < ANOMALY_SHARE or not step or not _computes(facts):
        return None
    evidence = (
        f"autograd's anomaly mode was on in {percent(share)} of the looks while it computed: it keeps a stack of "
        "Python for every operator and searches every gradient for NaN"
    )
    nodes = facts.model.graph_nodes or _NODES_OF_A_LAYER * (facts.model.layers or 0)
    nodes *= facts.training.micro_batches or 1
    awake = 1 - min(facts.host.queued_share or 0.0, 0.9)  # what it takes beyond waiting for a processor
    gain = min(0.9 * passes_s(facts), ANOMALY_NODE_S * nodes / awake) or None
    return Issue("autograd's anomaly mode is on", evidence,
                 "torch.autograd.set_detect_anomaly(False), and no detect_anomaly() around the loop (in Lightning "
                 "detect_anomaly=False): on only to find a NaN", facts.steady_steps,
                 gain / step if gain else None, gain_s=gain, about="compute",
                 severity=_left_on(gain, step))  # fmt: skip


def _left_on(gain: float | None, step: float) -> str | None:
    """The severity of what nobody means to train with, of whose cost only the least is known; None: by its share."""
    if gain is None:
        return "warning"
    return "critical" if gain >= LINE_OF_STEP_SHARE * step else None


def double_precision(facts: Facts) -> Issue | None:
    """Finds a model that computes in float64."""
    step = facts.mean_s("step")
    if facts.training.precision != "fp64" or not step or not _computes(facts) or facts.launch_bound:
        return None
    flops = (facts.model.forward_flops_per_sample or 0.0) + (facts.model.backward_flops_per_sample or 0.0)
    rate = flops * (facts.samples_per_step or 0.0) / (facts.mean_s("compute") or 1.0)
    if rate < ARITHMETIC_FLOPS:
        return None
    gain = 0.5 * passes_s(facts)
    evidence = f"the parameters are float64; computing is {percent(facts.summary.share('compute') or 0.0)} of the step"
    return Issue("the model computes in float64", evidence,
                 "model.float() and float32 inputs (numpy's arrays are float64: x.astype(numpy.float32)), where the "
                 "digits are not needed", facts.steady_steps, gain / step, gain_s=gain, about="compute")  # fmt: skip


def half_precision(facts: Facts) -> Issue | None:
    """Finds a 16-bit type on processors that do not compute in it."""
    used, known, step = facts.training.precision or "", facts.host.cpu_16bit, facts.mean_s("step")
    kind = used.removeprefix("amp-")
    if facts.device != "cpu" or known is None or kind not in _HALVES or kind in known:
        return None
    if not step or not _computes(facts):
        return None
    name, mixed = _HALVES[kind], used != kind
    evidence = f"the processor has no arithmetic in {name}: each number is converted to float32 and back"
    action = "float32 on this processor: model.float() and float32 inputs"
    if mixed:
        action = "no torch.autocast on this processor" + (f", or with {_HALVES[known[0]]}" if known else "")
    gain = None if mixed else 0.5 * passes_s(facts)
    return Issue(f"the model computes in {name}, which the processor does not have", evidence, action,
                 facts.steady_steps, gain / step if gain else None, gain_s=gain, about="compute",
                 severity="warning" if mixed else None)  # fmt: skip


def needless_gradients(facts: Facts) -> Issue | None:
    """Finds gradients that are computed and that no optimizer uses."""
    share, step = facts.model.needless_share, facts.mean_s("step")
    never, dropped = facts.model.needless_parameters or 0, facts.model.dropped_gradients or 0
    if not share or not never + dropped or not step or not _computes(facts) or facts.launch_bound:
        return None
    if facts.training.strategy not in (None, "none", "ddp"):  # others give optimizers other tensors than the graph has
        return None
    gain = passes_s(facts) * share
    if gain < LINE_OF_STEP_SHARE * step:
        return None
    evidence, advice = [], []
    if never:
        evidence.append(f"no optimizer updates {count(never, 'parameter')} that get gradients (eval() does not freeze)")
        advice.append(
            "freeze what is not trained: module.requires_grad_(False) before the training (clip_grad_norm_ then counts "
            "the trained parameters only)"
        )
    if dropped:
        evidence.append(f"gradients of {count(dropped, 'parameter')} are set to zero before their optimizer uses them")
        advice.append(
            "where one network's loss is computed through another one that does not learn from it: made.detach() if "
            "that one comes before (D(fake.detach()) in a GAN), requires_grad_(False) on it meanwhile if it comes after"
        )
    return Issue("gradients are computed that no optimizer uses",
                 f"{'; '.join(evidence)}: {percent(share)} of the operations of forward and backward are for that",
                 "; ".join(advice), facts.steady_steps, gain / step, gain_s=gain, about="compute")  # fmt: skip


_DEBUG_MODES = {
    PROFILER: (
        "a profiler of torch's records each operator and keeps it",
        "profile a few steps only: torch.profiler.profile(schedule=torch.profiler.schedule(wait=10, warmup=2, "
        "active=3, repeat=1)) with prof.step() after each, and no autograd.profiler.profile() around the training",
    ),
    TRACEMALLOC: (
        "tracemalloc keeps a stack of Python for each allocation",
        "no tracemalloc.start(), PYTHONTRACEMALLOC or -X tracemalloc",
    ),
    BLOCKING: (
        "CUDA_LAUNCH_BLOCKING is set, so that the host waits for each kernel",
        "unset CUDA_LAUNCH_BLOCKING",
    ),
    DETAIL: (
        "TORCH_DISTRIBUTED_DEBUG is DETAIL, so that ranks compare sizes and types before each collective",
        "unset TORCH_DISTRIBUTED_DEBUG (or INFO)",
    ),
}
"""What each mode does, and how it is left out."""


def debug_modes(facts: Facts) -> Issue | None:
    """Finds a profiler of torch's, tracemalloc or blocking launches that stay on."""
    modes = (facts.training.debug_modes or "").split(", ")
    on = [mode for mode in _DEBUG_MODES if mode in modes and (mode != TRACEMALLOC or python_counts(facts))]
    if not on:
        return None
    evidence = f"{'; '.join(_DEBUG_MODES[mode][0] for mode in on)}, at more than half of the looks"
    action = "; ".join(_DEBUG_MODES[mode][1] for mode in on)
    return Issue("what is meant for debugging is on", evidence, f"{action}: how much it gains, a run without it tells",
                 facts.steady_steps, severity="warning")  # fmt: skip


def python_counts(facts: Facts) -> bool:
    """Whether a step takes longer where Python does."""
    return facts.device == "cpu" or facts.launch_bound


def interpreter_hook(facts: Facts) -> Issue | None:
    """Finds a debugger or a profiler of Python that watches the whole training."""
    kind, _, name = (facts.training.interpreter_hook or "").partition(": ")
    if not name or not python_counts(facts):
        return None
    if kind == "call" and PROFILER in (facts.training.debug_modes or ""):  # which watches calls itself
        return None
    evidence = f"{name} is called for each {kind} of Python that the training runs"
    action = (
        "train without it: no debugger (the IDE's run in place of its debug), no coverage, no cProfile; how much it "
        "gains, a run without it tells"
    )
    return Issue("a debugger or a profiler watches the interpreter", evidence, action, facts.steady_steps,
                 severity="warning" if kind == "line" else "info")  # fmt: skip


def deterministic(facts: Facts) -> Issue | None:
    """Finds deterministic algorithms in a job that mostly computes."""
    share = facts.summary.share("compute")
    if not facts.training.deterministic or share is None or not _computes(facts):
        return None
    evidence = f"only deterministic algorithms are allowed; computing is {percent(share)} of the step"
    action = (
        "torch.use_deterministic_algorithms(False) and torch.backends.cudnn.deterministic = False where equal bits "
        "from run to run are not needed: how much it gains, a run without it tells"
    )
    return Issue("deterministic algorithms only", evidence, action, facts.steady_steps, share,
                 severity="info")  # fmt: skip


def subnormals(facts: Facts) -> Issue | None:
    """Finds numbers so small that the processor computes with them in microcode."""
    kind, share, times = facts.training.subnormal_of, facts.training.subnormal_share, facts.training.subnormal_times
    step = facts.mean_s("step")
    if not kind or not share or (times or 0.0) < SUBNORMAL_TIMES or not step or not _computes(facts):
        return None
    assert times is not None
    part = {SUBNORMAL_STATES: "compute_optimizer", SUBNORMAL_GRADIENTS: "compute_backward"}.get(kind)
    slowed = facts.mean_s(part) if part else None
    gain = (passes_s(facts) if slowed is None else slowed) * (1 - 1 / times)
    if gain < LINE_OF_STEP_SHARE * step:
        return None
    evidence = (
        f"{percent(share)} of the {kind} are below 1e-30, so that products with them are subnormal (below 1.2e-38), "
        f"with which this processor computes slowly: those of the {kind} take {significant(times, 2)} times as long "
        "as others"
    )
    action = (
        "torch.set_flush_denormal(True) at the start of the script, which takes such numbers for zero (for the thread "
        "that calls it: also at the start of each other thread that trains)"
    )
    return Issue(f"{kind} are so small that computing with them is slow", evidence, action, facts.steady_steps,
                 gain / step, gain_s=gain, about="compute", part=part if slowed is not None else None)  # fmt: skip


def few_threads(facts: Facts) -> Issue | None:
    """Finds a job that computes on few threads of a machine whose other cores have nothing to do."""
    threads, cores, busy = facts.training.cpu_threads, facts.host.cores_per_rank, facts.host.busy_cores_per_rank
    step, nodes = facts.mean_s("step"), facts.model.graph_nodes
    if facts.device != "cpu" or None in (threads, cores, busy, nodes) or not step or facts.starved:
        return None
    assert threads is not None
    assert cores is not None
    assert busy is not None
    assert nodes is not None
    if 2 * threads > cores or busy > FREE_CPU_PERCENT / 100 * cores or not _computes(facts):
        return None
    of_operator = passes_s(facts) / max(1, 2 * nodes * (facts.training.micro_batches or 1))
    if of_operator < THREADED_OPERATOR_S:
        return None
    gain = passes_s(facts) * (1 - threads / cores)
    evidence = f"torch computes on {count(threads, 'thread')} of {count(cores, 'core')} a rank, {busy:.1f} are busy; "
    evidence += f"an operator takes {significant(1000 * of_operator, 2)} ms, which is worth dividing"
    return Issue("most cores are idle", evidence,
                 f"torch.set_num_threads({cores}) or OMP_NUM_THREADS={cores} (torchrun sets 1 where it is not set)",
                 facts.steady_steps, gain / step, gain_s=gain, about="compute",
                 severity="warning" if gain > WARN_SHARE * step else "info")  # fmt: skip


def recomputation(facts: Facts) -> Issue | None:
    """Finds activation checkpointing where memory is free."""
    again, backward = facts.model.recomputed_flops_per_sample, facts.model.backward_flops_per_sample
    forward, step, peak = facts.model.forward_flops_per_sample, facts.mean_s("step"), facts.devices.peak_bytes
    size = facts.devices.memory_bytes
    if facts.device == "cpu":
        peak, free = facts.training.peak_process_memory_bytes, facts.host.free_bytes
        size = None if peak is None or free is None else peak + free // facts.ranks_per_node
    if not again or not backward or not forward or not step or not size or peak is None:
        return None
    if peak > (1 - FREE_MEMORY_SHARE) * size or not _computes(facts) or facts.launch_bound:
        return None
    gain = passes_s(facts) * again / (forward + backward)
    if gain < LINE_OF_STEP_SHARE * step:
        return None
    evidence = f"{percent(again / (forward + backward))} of the operations compute activations again; "
    evidence += f"{gib(peak)} of {gib(size)} are used"
    return Issue("activations are computed again although memory is free", evidence,
                 "without activation checkpointing (gradient_checkpointing=False), or with it on fewer layers",
                 facts.steady_steps, gain / step, gain_s=gain, about="compute", severity="info")  # fmt: skip


_MOSTLY = f"computing is {percent(_COMPUTES_SHARE)} of the step and keeps {percent(THREAD_BUSY_SHARE)} of a thread busy"

RULES = (
    Rule("padding", "Tokens of padding are computed", f"{percent(WARN_SHARE)} of the step, and {_MOSTLY}",
         "the passes take in proportion to their tokens; the update does not", FINDING_STEPS,
         "no mask and no number of the padding is known, or `launch_bound` speaks", padding),
    Rule("ignored_labels", "Logits of tokens without a label are computed",
         f"{percent(WARN_SHARE)} of the step, by the share of labels that are -100 and that of the last layer and the "
         f"loss in what the passes compute or move, whichever is less; {_MOSTLY}",
         "the loss leaves these tokens out, and so does backward", FINDING_STEPS,
         "the operators were not read, the loader gives no such labels beside text of the same shape, the loss gets "
         "fewer tokens than the batch has, or `launch_bound` speaks", ignored_labels),
    Rule("anomaly_mode", "Autograd's anomaly mode is on",
         f"on at {percent(ANOMALY_SHARE)} of the looks while it computes, and {_MOSTLY}",
         f"it costs at least {1e6 * ANOMALY_NODE_S:.0f} µs for each operator; critical from "
         f"{percent(LINE_OF_STEP_SHARE)} of the step on, since it may cost many times that", FINDING_STEPS,
         "nobody looked: the job was too short", anomaly_mode),
    Rule("double_precision", "The model computes in float64",
         f"{_MOSTLY}, at {ARITHMETIC_FLOPS / 1e9:.0f} GFLOP/s or more", "with less, arithmetic is not what takes time",
         FINDING_STEPS, "the operations of the model are not known, or `launch_bound` speaks", double_precision),
    Rule("half_precision", "The model computes in a 16-bit type that the processor does not have",
         f"{_MOSTLY}, in bfloat16 or float16", "it is computed in float32 anyway, and converted besides", FINDING_STEPS,
         "the job trains on a device, or the system does not tell what the processor has", half_precision),
    Rule("needless_gradients", "Gradients are computed that no optimizer uses: of parameters that nothing updates, or "
         "set to zero before the update",
         f"{percent(LINE_OF_STEP_SHARE)} of the step to gain, by the operations of a step",
         "a switch is changed in minutes", FINDING_STEPS,
         "the graph was not read, the parameters have changed since, another optimizer than those of the first steps "
         "has them, or the strategy is neither none nor DDP", needless_gradients),
    Rule("debug_modes", "A profiler of torch's, tracemalloc, blocking launches or checks of collectives are left on",
         "each of them at most looks and at the last one; tracemalloc on a job that trains on processors or waits for "
         "launches",
         "they are for a few steps: steps may take several times as long, and memory grows with the events of a "
         "profiler", FINDING_STEPS, "nobody looked", debug_modes, hides=True),
    Rule("interpreter_hook", "A debugger or a profiler watches each line or call of Python",
         "a trace function (`sys.settrace`) or a profiler (`sys.setprofile`, cProfile) at most looks, on a job that "
         "trains on processors or waits for launches",
         "each line of Python takes several times as long under it; an info where only calls are watched",
         FINDING_STEPS, "nobody looked, the device has enough to do, or torch's profiler is what watches calls",
         interpreter_hook, hides=True),
    Rule("deterministic", "Only deterministic algorithms are allowed", _MOSTLY,
         "always an info, since somebody asked for it and nobody measured what it costs", FINDING_STEPS,
         "nobody looked: the job was too short", deterministic),
    Rule("subnormals", "Numbers are so small that the processor computes with them slowly",
         f"products of samples of all gradients, parameters or states of optimizers take {SUBNORMAL_TIMES:g} times as "
         f"long as others, on the processor itself; {percent(LINE_OF_STEP_SHARE)} of the step to gain, and {_MOSTLY}",
         "many processors take no longer for them, and other work on the machine may be what took the time",
         FINDING_STEPS,
         "nobody looked, or the job trains on a device", subnormals),
    Rule("few_threads", "torch computes on few threads, and the other cores are idle",
         f"half of a rank's cores or fewer, {FREE_CPU_PERCENT:.0f} % of the cores busy, {_MOSTLY}, and "
         f"{1e6 * THREADED_OPERATOR_S:.0f} µs for an operator",
         "shorter operators are not faster on more threads; never more than a warning, since nobody measured how much "
         "faster longer ones are", FINDING_STEPS,
         "the autograd graph was not read, the training waits for processors, or the job trains on a device",
         few_threads, comes_last=True),
    Rule("recomputation", "Activations are computed again although memory is free",
         f"{percent(LINE_OF_STEP_SHARE)} of the step to gain, and {percent(FREE_MEMORY_SHARE)} of the device's memory "
         "was never used, or on processors as much of the machine's is free as the process has",
         "always an info, since nobody knows whether all activations fit", FINDING_STEPS,
         "the operations or the memory are not known, or `launch_bound` speaks", recomputation),
)  # fmt: skip
