"""Rules about communication that is no exchange of gradients: DDP's broadcasts of buffers, and lines of the script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from ddlprof.analysis.issued import Issued, by_line
from ddlprof.analysis.rules.communication import MOVING, WORTH, exposed_s, other_at, share_of_step
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.rules.switches import cost
from ddlprof.analysis.sources import MORE_THAN_A_LINE, function_of
from ddlprof.analysis.thresholds import (
    BUCKET_BYTES,
    FINDING_STEPS,
    LINE_OF_STEP_SHARE,
    SMALL_BUCKET_BYTES,
    SMALL_BUCKETS,
    UNUSED_LOOKS,
    WARN_SHARE,
)
from ddlprof.base.units import gib, percent, significant, size
from ddlprof.model.issuers import BUFFERS, IN_BACKWARD, IN_FORWARD, OBJECTS, OF_SCRIPT, REDUCER, SCRIPT
from ddlprof.model.source_locations import SourceLocation

_ALL_GRADIENTS = 0.5
"""A line whose all-reduces carry at least this share of the gradients' bytes, and at most the next, may carry them."""
_NO_MORE = 1.5
_WHOLE_MODEL = 0.95
"""The share of the model's bytes from which on a line sends all of its weights, or of its gradients."""
_STATISTICS = "those of each rank alone, or on a device nn.SyncBatchNorm, which sends one message for each layer"
_KEPT_BY_DDP = (
    "if these are weights or gradients, without it: DDP starts all ranks with the weights of rank 0 and gives all the "
    "same gradients in backward, so that they stay the same; buffers go before each forward (broadcast_buffers=True)"
)
GATHER_LESS = "where only sums or means of it over all ranks are used, all_reduce of those of each rank"
"""Advice for a line that gathers."""
_OF_INPUT_BYTES = 2**16
"""From so many bytes of a sample on, what is gathered is rather an input than an output of the model."""
_GATHER_NO_INPUTS = (
    "where these are inputs, without them: each rank loads the samples that it is to have, their numbers shuffled in "
    "the sampler by a seed that all ranks share, and only what is computed of them is gathered"
)
_USUAL_BACKWARD, _LONG_BACKWARD = 3, 5
"""A backward computes as long as two forwards, three where activations are recomputed; five are more than gradients."""
_PLAIN_HOOKS = ("fp16_compress", "bf16_compress", "allreduce", "upcast", "noop", "localSGD", "optim", "zero")
"""What is in the names of torch's hooks that choose or factorize nothing, or that do more than exchange gradients."""
_NAMELESS_HOOK = "partial"
"""The name of a hook made by `functools.partial`, which tells nothing of it."""
_WHOLE = 0.05
"""How far from a whole number of calls in each micro-batch the mean may be, as a few steps make others."""
_DATA_PARALLEL = (None, "none", "ddp", "fsdp", "zero", "ddp+fsdp", "other")
"""The strategies in which a line of the script is one of the training, and not a part of a divided layer."""


@dataclass(frozen=True)
class _Line:
    """What one line of the script issues in a step."""

    kinds: Sequence[Issued]
    moving_s: float

    @property
    def number(self) -> float:
        return sum(each.number for each in self.kinds)

    @property
    def bytes(self) -> float:
        return sum(each.bytes for each in self.kinds)

    @property
    def ops(self) -> str:
        return " and ".join(sorted({each.op for each in self.kinds}))

    @property
    def text(self) -> str:
        """The line, and what called it in the training loop if that is one line; of several lines that alone."""
        texts, callers = ({getattr(each.place, name) for each in self.kinds} for name in ("text", "caller"))
        caller = next(iter(callers)) if len(callers) == 1 else ""
        if len(texts) > 1:
            return caller
        return f"{self.kinds[0].place.text}{f', called at {caller}' if caller else ''}"

    @property
    def is_outside(self) -> bool:
        """Whether it is neither in a forward nor in a backward."""
        return all(each.place.what == SCRIPT for each in self.kinds)

    @property
    def only_waits(self) -> bool:
        """Whether nothing is sent there, so that nothing can be put together."""
        return all("barrier" in each.op for each in self.kinds)

    @property
    def fastest_s(self) -> float | None:
        return min((each.fastest_s for each in self.kinds if each.fastest_s is not None), default=None)


def buffer_broadcast(facts: Facts) -> Issue | None:
    """Finds buffers that DDP sends to all ranks before each forward."""
    sent = facts.issued.of(BUFFERS)
    exposed = exposed_s(facts, sent) if sent else None
    if exposed is None or facts.training.buffers_change:
        return None
    passes = max(1, facts.training.micro_batches or 1)
    evidence = f"{size(sum(each.bytes for each in sent) / passes)} of buffers are broadcast before each forward; "
    evidence += f"computing waits {facts.scale.time(exposed)} a step"
    action = "DistributedDataParallel(broadcast_buffers=False)"
    if facts.training.buffers_change is None:
        action += ", if all ranks make the same buffers, as masks and tables are"
    if facts.training.batch_statistics is not False:
        action += "; running statistics of BatchNorm are then those of each rank, which evaluation uses"
    return Issue("buffers are broadcast before each forward", evidence, action, facts.steady_steps,
                 share_of_step(facts, exposed), gain_s=exposed, about="comm")  # fmt: skip


def comm_hook(facts: Facts) -> Issue | None:
    """Finds a communication hook of DDP inside one machine, where backward takes longer than its operators explain."""
    hook, step, forward = facts.training.comm_hook, facts.mean_s("step"), facts.mean_s("compute_forward")
    backward, usual = facts.mean_s("compute_backward"), _usual_backward(facts)
    inside = facts.training.strategy == "ddp" and facts.ranks_per_node == facts.world_size > 1
    if not hook or hook == _NAMELESS_HOOK or any(name in hook for name in _PLAIN_HOOKS):
        return None
    if not inside or not step or not forward or not backward or usual is None or facts.model.repeated_share:
        return None
    beyond = backward - _USUAL_BACKWARD * forward
    if usual > _USUAL_BACKWARD or backward < _LONG_BACKWARD * forward or beyond < WARN_SHARE * step:
        return None
    evidence = f"{hook} runs in backward, which computes {facts.scale.time(backward)} a step, "
    evidence += f"{significant(backward / forward, 2)} times the forward; by its operators it is about "
    evidence += f"{significant(usual, 2)} times"
    action = f"measure once without {hook}, as what it takes was not measured: DDP's own all-reduce sends whole "
    action += "gradients, in buckets while backward goes on"
    return Issue("backward is long, and a communication hook runs in it", evidence, action, facts.steady_steps,
                 beyond / step, about="compute", part="compute_backward", severity="info")  # fmt: skip


def _usual_backward(facts: Facts) -> float | None:
    """How many times as long as forward its backward takes by their operations and bytes; None: not known, as where
    operators of no known kind, such as second derivatives and bags of embeddings, may take more or less than that."""
    forward, backward = (
        sum(cost(facts, each) for each in facts.operators if each.phase == phase) for phase in ("forward", "backward")
    )
    known = all(each.kind != "other" for each in facts.operators)
    return backward / forward if forward and known else None


def unused_search(facts: Facts) -> Issue | None:
    """Finds a search for unused parameters that never finds any."""
    looked, sent = facts.training.unused_iterations or 0, facts.issued.of(REDUCER)
    if facts.world_size < 2 or facts.training.strategy != "ddp" or looked < UNUSED_LOOKS:
        return None
    shortest = min((each.fastest_s for each in sent if each.fastest_s is not None), default=None)
    gain = None if shortest is None or sum(each.number for each in sent) < 2 else min(shortest, facts.moving_of(sent))
    evidence = (
        f"find_unused_parameters=True, and no parameter was unused in any of {looked} iterations looked at; each "
    )
    evidence += "forward walks the whole graph to search, and each backward sends a message more"
    action = "DistributedDataParallel(find_unused_parameters=False), which is the default; it raises an error if a "
    action += "parameter is unused after all"
    warns = (share_of_step(facts, gain or 0.0) or 0.0) >= LINE_OF_STEP_SHARE
    return Issue("DDP searches for unused parameters and finds none", evidence, action, facts.steady_steps,
                 gain_s=gain or None, about="comm", severity="warning" if warns else None)  # fmt: skip


def many_messages(facts: Facts) -> Issue | None:
    """Finds a line of the script that sends many small messages."""
    line = _main_line(facts)
    if line is None or line.only_waits or line.number < SMALL_BUCKETS or line.bytes >= SMALL_BUCKET_BYTES * line.number:
        return None
    passes = 1 if line.is_outside else max(1, facts.training.micro_batches or 1)
    enough = passes * max(1, ceil(line.bytes / passes / BUCKET_BYTES))
    if line.fastest_s is None or line.number < 4 * enough:
        return None
    other_s, gain = other_at(facts, line.kinds), min(line.moving_s, (line.number - enough) * line.fastest_s)
    evidence = f"{line.text}: {line.number:.0f} x {line.ops} a step, {size(line.bytes / line.number)} each, at least "
    evidence += f"{1e6 * line.fastest_s:.0f} µs each; computing waits {facts.scale.time(line.moving_s)} for them"
    evidence += f", and {facts.scale.time(other_s)} a step are at that line itself" if other_s else ""
    together = "one message for all that is known at one time: torch.cat the tensors, and all_reduce the result"
    action, gain = together, gain + other_s * (1 - enough / line.number)
    if _may_be_gradients(facts, line):
        action = _or_ddp(together)
    elif _is_kept_by_ddp(facts, line):
        action, gain = f"{_KEPT_BY_DDP}; otherwise {together}", line.moving_s + other_s
    elif all(each.place.what == IN_FORWARD for each in line.kinds):
        action = f"{together}; if these are statistics of normalisations, {_STATISTICS}"
    elif "gather" in line.ops:
        action = f"in every Nth step only; {GATHER_LESS}; otherwise {together}"
    return Issue("the script sends many small messages", evidence, f"{line.text}: {action}", facts.steady_steps,
                 share_of_step(facts, line.moving_s + other_s), about="other" if other_s > line.moving_s else "comm",
                 gain_s=gain)  # fmt: skip


def own_messages(facts: Facts) -> Issue | None:
    """Finds a line of the script whose communication computing waits for, other than many small messages."""
    line = _main_line(facts)
    if line is None or many_messages(facts) is not None:
        return None
    evidence = f"{line.text}: {line.number:.0f} x {line.ops} a step, {size(line.bytes / line.number)} each; "
    evidence += f"computing waits {facts.scale.time(line.moving_s)} for it"
    share, passes = share_of_step(facts, line.moving_s), facts.training.micro_batches or 1
    times, gain = line.number / passes, None
    if line.only_waits:
        title, gain = "the ranks wait at a barrier of the script", line.moving_s
        action = f"{line.text}: without it, as DDP and all collectives wait for one another; a barrier is needed where "
        action += "a rank reads a file that another one writes"
    elif _is_kept_by_ddp(facts, line):
        title = "the script sends as much as the whole model has, beside DDP"
        action, gain = f"{line.text}: {_KEPT_BY_DDP}", line.moving_s
    elif passes > 1 and line.is_outside and round(times) >= 1 and abs(times - round(times)) <= _WHOLE * times:
        title = "the script communicates in each micro-batch"
        action = f"{line.text}: once an update, in the last of {passes} micro-batches, of their sum"
        gain = line.moving_s * (1 - 1 / passes)
    elif _may_be_gradients(facts, line):
        title = "the script exchanges gradients by hand"
        action = f"{line.text}: {_or_ddp('')}"
        gain = min(line.moving_s, facts.mean_s("compute_backward") or 0.0) or None
    else:
        title = "computing waits for communication of the script"
        action = f"{line.text}: less often, or beside computing: async_op=True, and wait() where the result is used"
        if _may_be_inputs(facts, line):
            action = f"{line.text}: {_GATHER_NO_INPUTS}"
        elif "gather" in line.ops:
            action += f"; {GATHER_LESS}"
    return Issue(title, evidence, action, facts.steady_steps, share, gain_s=gain, about="comm")


def sent_objects(facts: Facts) -> Issue | None:
    """Finds a line that sends objects of Python in steady steps."""
    step, lines = facts.mean_s("step"), _lines(facts, facts.issued.of(OBJECTS))
    if not step or not lines:
        return None
    seconds = {line: line.moving_s + other_at(facts, line.kinds) for line in lines}
    line = max(lines, key=lambda each: seconds[each])
    if seconds[line] < LINE_OF_STEP_SHARE * step:
        return None
    scale, pickling = facts.scale, seconds[line] - line.moving_s
    evidence = f"{line.text}: {line.number:.0f} x {line.ops} a step for {size(line.bytes)} of pickled objects"
    evidence += f"; {scale.time(pickling)} a step at that line itself" if pickling else ""
    evidence += f"; computing waits {scale.time(line.moving_s)} for them" if line.moving_s else ""
    action = (
        "tensors in place of objects (all_gather or all_reduce of a tensor in place of all_gather_object), in every "
        "Nth step or once for all steps since: objects are pickled, sent as sizes and then as bytes, and read again"
    )
    return Issue("the script sends objects of Python in its steps", evidence, f"{line.text}: {action}",
                 facts.steady_steps, seconds[line] / step, gain_s=seconds[line],
                 about="other" if pickling > line.moving_s else "comm")  # fmt: skip


def _main_line(facts: Facts) -> _Line | None:
    """The line of the script for whose communication computing waits longest; None if that is not worth a warning.

    Lines of functions that one line of the training loop calls are votes for that line.
    """
    if facts.training.strategy not in _DATA_PARALLEL:
        return None
    issued = _with_backwards([each for each in facts.issued.of(*OF_SCRIPT) if each.place.what != OBJECTS])
    line = max(_lines(facts, issued), key=lambda each: each.moving_s, default=None)
    wider = max(_lines(facts, issued, by_caller=True), key=lambda each: each.moving_s, default=None)
    if line is not None and wider is not None and wider.moving_s > MORE_THAN_A_LINE * line.moving_s:
        line = wider
    return line if line is not None and exposed_s(facts, line.kinds) is not None else None


def _with_backwards(issued: list[Issued]) -> list[Issued]:
    """The same, with the backwards of collectives told as of the function that issues all collectives in forward."""
    functions = {function_of(each.place.text) for each in issued if each.place.what == IN_FORWARD}
    if len(functions) != 1 or not any(map(_is_backward, issued)):
        return issued
    place = SourceLocation(functions.pop(), IN_FORWARD)
    return [
        replace(each, place=place) if each.place.what == IN_FORWARD or _is_backward(each) else each for each in issued
    ]


def _is_backward(issued: Issued) -> bool:
    """Whether it is the backward of a function of torch's."""
    return issued.place.what == IN_BACKWARD and issued.place.text.startswith("torch/")


def _lines(facts: Facts, issued: Sequence[Issued], by_caller: bool = False) -> list[_Line]:
    return [_Line(tuple(kinds), facts.moving_of(kinds)) for kinds in by_line(issued, by_caller).values()]


def _may_be_gradients(facts: Facts, line: _Line) -> bool:
    """Whether what a line adds up over the ranks has the size of the gradients, which nothing else exchanges."""
    gradients = facts.model.gradient_bytes
    if not gradients or facts.issued.of(REDUCER) or facts.training.strategy not in (None, "none", "other"):
        return False
    return line.ops == "allreduce" and _ALL_GRADIENTS * gradients <= line.bytes <= _NO_MORE * gradients


def _may_be_inputs(facts: Facts, line: _Line) -> bool:
    """Whether a line gathers as much for each sample of all ranks as inputs have."""
    batch = facts.training.batch_per_rank
    largest = max(each.largest_bytes for each in line.kinds if "gather" in each.op) if "gather" in line.ops else 0
    return batch is not None and largest >= _OF_INPUT_BYTES * batch * facts.world_size


def _is_kept_by_ddp(facts: Facts, line: _Line) -> bool:
    """Whether a line adds up or broadcasts as much as all weights have, though DDP adds up all gradients."""
    gradients, exchanges = facts.model.gradient_bytes, facts.exchanges
    if not gradients or not exchanges or facts.training.strategy != "ddp" or not line.is_outside:
        return False
    same = all(each.op.startswith(("allreduce", "broadcast")) for each in line.kinds)
    return same and exchanges >= _WHOLE_MODEL and _WHOLE_MODEL * gradients <= line.bytes <= _NO_MORE * gradients


def _or_ddp(otherwise: str) -> str:
    ddp = "DistributedDataParallel(model) in place of it, which sends gradients in buckets while backward goes on"
    return f"{ddp}, or {otherwise}" if otherwise else f"if these are gradients, {ddp}"


_LINE = f"{MOVING}, all of it at one line"

RULES = (
    Rule("buffer_broadcast", "DDP broadcasts buffers before each forward", f"{MOVING}, by these broadcasts", WORTH,
         FINDING_STEPS, "it is not known who issues the collectives, or buffers other than running statistics change",
         buffer_broadcast),
    Rule("comm_hook", "Backward is long, and a communication hook runs in it", f"a hook, and backward computes "
         f"{_LONG_BACKWARD} times as long as forward, {percent(WARN_SHARE)} of the step beyond {_USUAL_BACKWARD} times",
         f"by operations and bytes of its operators it is at most {_USUAL_BACKWARD} times; never more than an info, as "
         "the hook alone was not measured", FINDING_STEPS, "there is no hook, its name tells nothing, it is one of "
         "torch's that only casts or that also updates, ranks are on several machines, operators were not read or "
         "not all of a known kind, or forward is not told from backward", comm_hook),
    Rule("unused_search", "DDP searches for unused parameters and finds none",
         f"`find_unused_parameters`, and nothing found in {UNUSED_LOOKS} iterations",
         "fewer may have missed a control flow that leaves parameters out; a warning if the message that it adds to "
         f"each backward takes {percent(LINE_OF_STEP_SHARE)} of the step", FINDING_STEPS,
         "the strategy is not DDP", unused_search),
    Rule("many_messages", "A line of the script sends many small messages", f"{_LINE}; at least {SMALL_BUCKETS} "
         f"messages of less than {gib(SMALL_BUCKET_BYTES)}, four times as many as needed",
         "small messages cost mostly latency", FINDING_STEPS,
         "it is not known who issues the collectives, or layers are divided among the ranks", many_messages),
    Rule("sent_objects", "A line of the script sends objects of Python",
         f"{percent(LINE_OF_STEP_SHARE)} of the step exposed, or outside of computing, at that line",
         "a line is changed in minutes", FINDING_STEPS, "it is not known who issues the collectives", sent_objects),
    Rule("own_messages", "Computing waits for communication of the script", _LINE, WORTH, FINDING_STEPS,
         "as `many_messages`, or that one speaks", own_messages),
)  # fmt: skip
