"""Rules about memory that grows and devices whose clock is held down."""

from __future__ import annotations

from collections.abc import Sequence

from ddlprof.analysis.health import Moved
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.pauses import recompilation
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.rules.signals import MemoryGrowth
from ddlprof.analysis.rules.switches import subnormals
from ddlprof.analysis.thresholds import (
    COPIED_BYTES,
    FINDING_STEPS,
    GROWTH_BYTES,
    GROWTH_PARTS,
    GROWTH_READINGS,
    GROWTH_SHARE,
    GROWTH_STEADINESS,
    HOT_C,
    KEPT_GRAPHS,
    LINE_OF_STEP_SHARE,
    MOVED_SHARE,
    MOVED_STEPS,
    OUT_OF_MEMORY_H,
    SLOWED_SHARE,
    SLOWED_STEPS,
    SLOWED_TIMES,
    THROTTLED_CLOCK,
    THROTTLED_COMPUTE,
    THROTTLED_READINGS,
    THROTTLED_SHARE,
    WARN_SHARE,
)
from ddlprof.base.units import count, gib, percent, ranges, significant

_MOST_COUNTERS = 3
_ALIVE = "the autograd graphs of the first steps were still alive many steps later"
_KEEP_NONE = (
    "keep no graph from step to step: losses.append(loss.item()), total += loss.item(), hidden = hidden.detach() and "
    "outputs.append(output.detach())"
)
_CRITICAL_H, _WARNING_H, _NEVER_H = OUT_OF_MEMORY_H


def memory_creep(facts: Facts) -> Issue | None:
    """Finds memory that grows all the time, and estimates when none will be left."""
    if not facts.devices.growths or recompilation(facts) is not None:  # compiled code is kept
        return None
    if slowing_steps(facts) is not None:
        return None
    step_s = facts.mean_s("step")
    if not step_s:
        return None
    fastest = _fastest(facts.devices.growths)
    hours = _hours_left(facts, facts.devices.growths, step_s)
    if hours is not None and hours > _NEVER_H:
        return None
    where = "on the device" if fastest.where == "device" else "in the process"
    evidence = f"{gib(fastest.bytes_now)} {where} of rank {fastest.rank}, {_rate(fastest.bytes_per_step)} a step"
    evidence += _until(hours)
    whose, named = _ranks_of(facts.devices.growths, facts)
    action = "see what keeps tensors or results of each step: lists of losses without .item() or .detach(), caches"
    if _keeps_graphs(facts):
        evidence, action = f"{evidence}; {_ALIVE}", _KEEP_NONE
    return Issue(f"memory{whose} grows all the time", evidence, action, fastest.readings,
                 ranks=named, severity=_urgency(hours))  # fmt: skip


def worker_memory(facts: Facts) -> Issue | None:
    """Finds workers of a loader whose memory grows all the time, and estimates when none will be left."""
    growths, workers, step_s = facts.host.worker_growths, facts.training.loader_workers, facts.mean_s("step")
    if not growths or not workers or not step_s:
        return None
    hours = _hours_left(facts, growths, step_s)
    if hours is not None and (hours > _NEVER_H or _lasts_for_an_epoch(facts, hours, step_s)):
        return None
    fastest = _fastest(growths)
    evidence = f"{gib(fastest.bytes_now)} that {count(workers, 'loader worker')} of rank {fastest.rank} have taken "
    evidence += f"since they started, {_rate(fastest.bytes_per_step)} a step{_until(hours)}"
    action = (
        "drop what each __getitem__ keeps (self.cache[i] = ..., lists, readers with their buffers), bound it "
        "(functools.lru_cache(maxsize=...)), or fill it once, in arrays, before the workers are forked: they share it"
    )
    whose, named = _ranks_of(growths, facts)
    return Issue(f"memory of loader workers{whose} grows all the time", evidence, action, fastest.readings,
                 ranks=named, severity=_urgency(hours))  # fmt: skip


def slowing_steps(facts: Facts) -> Issue | None:
    """Finds steps that become slower all the time: what is kept, or done once more, is gone through in every step."""
    growths = {growth.rank: growth for growth in facts.devices.growths}
    step = facts.mean_s("step")
    if not step or recompilation(facts) is not None or subnormals(facts) is not None:
        return None
    # How long the training waits for a processor is known, and left out; of its workers it is not.
    of_workers = facts.starved and bool(facts.training.loader_workers)
    found = [
        each for each in facts.slowing
        if each.rank in growths or (each.beside and not (of_workers and each.about == "data"))
    ]  # fmt: skip
    worst = max(found, key=lambda each: each.last_s - each.first_s, default=None)
    if worst is None or (gain := step - worst.first_s) < LINE_OF_STEP_SHARE * step:
        return None
    growth = growths.get(worst.rank)
    evidence = f"from {facts.scale.time(worst.first_s)} to {facts.scale.time(worst.last_s)} a step, mostly of "
    evidence += worst.about
    if growth is not None:
        where = "on the device" if growth.where == "device" else "in the process"
        evidence += f", while {_rate(growth.bytes_per_step)} a step are added {where} of rank {worst.rank}"
    evidence += f"; {_ALIVE}" if _keeps_graphs(facts) else ""
    sources = {"other": facts.sources, "compute": facts.computing}.get(worst.about)
    line = sources.main if sources is not None else None
    evidence += f"; {percent(line.share)} of it at {line.place.text}" if line is not None else ""
    if growth is not None:
        title = "steps become slower as memory grows"
        action = f"{_KEEP_NONE}, no retain_graph=True, lists and metrics emptied once an epoch"
    else:
        title = "steps become slower and slower"
        action = (
            "what grows with the steps is kept out of them: a hook registered in each of them (handle.remove()), "
            "a tensor that torch.cat makes longer, lists and metrics that are not emptied"
        )
    return Issue(title, evidence, action, worst.steps, gain / step, gain_s=gain,
                 about=worst.about, part="slowing")  # fmt: skip


def kept_graphs(facts: Facts) -> Issue | None:
    """Finds autograd graphs that outlive their step, where memory and steps were not seen to grow for long enough."""
    if not _keeps_graphs(facts) or memory_creep(facts) is not None or slowing_steps(facts) is not None:
        return None
    rises, evidence = facts.devices.peak_rises, _ALIVE
    if rises is not None:
        evidence += f"; the most memory that a rank has held rises by {_rate(rises)} a step"
    return Issue("losses or outputs are kept with their graphs", evidence, _KEEP_NONE, facts.steady_steps,
                 severity="info" if rises is None else "warning")  # fmt: skip


def retained_graphs(facts: Facts) -> Issue | None:
    """Finds graphs that a backward keeps for another one that never comes."""
    if not facts.training.retained_graphs:
        return None
    return Issue("each backward keeps its graph, and no other one uses it",
                 "the only backward of each of the first steps has retain_graph=True (or create_graph=True): the "
                 "activations of a step are freed when the next forward has made its own",
                 "loss.backward() without retain_graph=True; if something needs the graph after all, the first step "
                 "raises an error", facts.steady_steps, severity="info")  # fmt: skip


def copied_objects(facts: Facts) -> Issue | None:
    """Finds workers that copy memory which they share with the main process, by reading objects of Python there."""
    copied, workers = facts.host.copied_bytes, facts.training.loader_workers
    if not copied or not workers or copied < workers * COPIED_BYTES:
        return None
    evidence = f"{gib(copied)} of the memory that {count(workers, 'loader worker')} and the main process share were "
    evidence += "copied: to read an object of Python is to write its reference count, and a full garbage "
    evidence += "collection in a worker writes to all that it goes through"
    action = (
        "what the data set keeps of all samples in arrays or tensors, not in lists or dicts of Python's objects: "
        "np.array(names), torch.tensor(labels), or all samples pickled into one array of bytes with offsets; and "
        "gc.freeze() before the loader starts them, which keeps the collector from what is there"
    )
    free = facts.host.free_bytes
    many = free is not None and copied * min(facts.world_size, facts.ranks_per_node) >= WARN_SHARE * free
    return Issue("loader workers copy objects that they only read", evidence, action, facts.steady_steps,
                 severity="warning" if many else "info")  # fmt: skip


def _keeps_graphs(facts: Facts) -> bool:
    return (facts.training.kept_graphs or 0) >= KEPT_GRAPHS


def _fastest(growths: Sequence[MemoryGrowth]) -> MemoryGrowth:
    return max(growths, key=lambda growth: (growth.bytes_per_step, -growth.rank))


def _hours_left(facts: Facts, growths: Sequence[MemoryGrowth], step_s: float) -> float | None:
    """The hours until the memory is used up. All ranks of a machine share its memory."""
    growth = _fastest(growths)
    if growth.where == "device":
        if facts.devices.memory_bytes is None:
            return None
        return max(0.0, facts.devices.memory_bytes - growth.bytes_now) / growth.bytes_per_step * step_s / 3600
    if facts.host.free_bytes is None:
        return None
    together = growth.bytes_per_step * min(len(growths), facts.ranks_per_node)
    return facts.host.free_bytes / together * step_s / 3600


def _lasts_for_an_epoch(facts: Facts, hours: float, step_s: float) -> bool:
    """Whether workers that end with their epoch, as far as known, end before the memory does."""
    training = facts.training
    if training.persistent_workers is not False or not training.dataset_samples or not training.global_batch:
        return False
    return 3600 * hours >= training.dataset_samples / training.global_batch * step_s


def _ranks_of(growths: Sequence[MemoryGrowth], facts: Facts) -> tuple[str, tuple[int, ...]]:
    """Whose memory grows, and these ranks; both empty if it is that of all."""
    named = tuple(growth.rank for growth in growths)
    if len(named) == facts.world_size:
        return "", ()
    return f" of rank{'s' * (len(named) > 1)} {ranges(named)}", named


def _until(hours: float | None) -> str:
    return "" if hours is None else f": out of memory in {_time(hours)}"


def _urgency(hours: float | None) -> str:
    if hours is None or hours > _WARNING_H:
        return "info"
    return "critical" if hours <= _CRITICAL_H else "warning"


def _rate(number_of_bytes: float) -> str:
    if number_of_bytes >= 2**20:
        return f"+{gib(number_of_bytes)}"
    return f"+{number_of_bytes / 1024:.1f} KiB"


def _time(hours: float) -> str:
    for length, name in ((24.0, "day"), (1.0, "hour")):
        if hours >= 2 * length:
            return count(round(hours / length), name)
    return count(max(round(hours * 60), 1), "minute")


_GROWS = (
    f"from each of {GROWTH_PARTS} parts of the steady steps to the next by {percent(GROWTH_STEADINESS)} of the "
    f"mean growth, {percent(GROWTH_SHARE)} and {gib(GROWTH_BYTES)} in all; critical if nothing is left in "
    f"{_CRITICAL_H:.0f} hours, a warning in {_WARNING_H:.0f}, nothing after {_NEVER_H:.0f}"
)

MEMORY_RULES = (
    Rule("memory_creep", "Memory grows all the time", _GROWS,
         "caches and allocators grow to a plateau; a leak does not slow down", GROWTH_READINGS,
         "mapped files cannot be told from the process's own memory (not Linux), or `recompilation` or `slowing_steps` "
         "speaks", memory_creep),
    Rule("worker_memory", "Memory of loader workers grows all the time", _GROWS,
         "workers that start anew with each epoch give back what they took", GROWTH_READINGS,
         "workers that end with their epoch end before the memory does, or the system does not tell (only Linux does)",
         worker_memory),
    Rule("slowing_steps", "Steps become slower and slower",
         f"the quickest steps of {GROWTH_PARTS} parts of the steady steps longer from part to part, but for one pair, "
         f"by {percent(SLOWED_SHARE)} in all on a rank whose memory grows all the time, else {SLOWED_TIMES:g} times as "
         f"long in the end, waits for a processor left out, with at most {percent(SLOWED_SHARE)} of what computing "
         f"grows by in backward; and {percent(LINE_OF_STEP_SHARE)} of the step to gain",
         "what is kept, or done once more, is gone through again in every step; more or longer samples make backward "
         "longer, and a machine that others use more and more keeps nothing", SLOWED_STEPS,
         "`recompilation` or `subnormals` speaks, or it may all be waiting for a processor", slowing_steps),
    Rule("kept_graphs", "Losses or outputs are kept with their graphs",
         f"graphs of {KEPT_GRAPHS} of the first 4 steps that are alive many steps later; a warning if the most memory "
         f"that a rank has held rises by {gib(GROWTH_BYTES)} and {percent(GROWTH_SHARE)} in the steady steps",
         "one may be kept for a look; those of all steps add up", FINDING_STEPS,
         "`memory_creep` or `slowing_steps` speaks, which then say so", kept_graphs),
    Rule("retained_graphs", "Each backward keeps its graph, and no other one uses it",
         "`retain_graph`, one backward in each of the first 4 steps, and graphs that are let go later",
         "always an info, since nobody measured how much memory it takes", FINDING_STEPS,
         "a step has several backwards, or graphs are kept from step to step", retained_graphs),
    Rule("copied_objects", "Loader workers copy objects that they only read",
         f"{gib(COPIED_BYTES)} for each worker that was shared with the main process and no longer is, and no new "
         f"memory; a warning if that is {percent(WARN_SHARE)} of what is free on the machine",
         "what any worker copies of torch's own objects is less, even if its collector goes through them",
         FINDING_STEPS, "there are no workers, or the system does not tell (only Linux does)", copied_objects),
)  # fmt: skip


def throttling(facts: Facts) -> Issue | None:
    """Finds devices whose clock is held down by heat or power."""
    if not facts.devices.throttled:
        return None
    worst = max(facts.devices.throttled, key=lambda each: (each.lost_s, -each.rank))
    named = tuple(each.rank for each in facts.devices.throttled)
    why = "heat" if worst.by_heat else "its power limit"
    evidence = f"rank {worst.rank}: {worst.clock_mhz:.0f} MHz in {percent(worst.readings_share)} of the readings, "
    evidence += f"{worst.free_clock_mhz:.0f} MHz otherwise"
    evidence += f", {worst.temperature_c:.0f} °C" if worst.temperature_c is not None else ""
    evidence += f"; it computes {facts.scale.time(worst.lost_s)} a step longer"
    step = facts.mean_s("step")
    action = (
        "see to the cooling of that machine, or move the job to another one"
        if worst.by_heat
        else "raise the power limit (nvidia-smi -pl) where the machine allows it, or share the power out differently"
    )
    which = f"rank{'s' * (len(named) > 1)} {ranges(named)}"
    return Issue(f"the device of {which} is slowed down by {why}", evidence, action, worst.readings,
                 worst.lost_s / step if step else None, gain_s=worst.lost_s, ranks=named,
                 about="compute")  # fmt: skip


def sick_machine(facts: Facts) -> Issue | None:
    """Finds counters of errors and shortages that moved while a rank was late, on its machine or its device."""
    late = facts.late_rank
    if late is None or not facts.moved:
        return None
    worst = facts.moved[0]
    evidence = "; ".join(_moved(each) for each in facts.moved[:_MOST_COUNTERS])
    whose = "the device" if worst.counter.of_device else "the machine"
    return Issue(f"{whose} of rank {late.rank} is not well: {worst.counter.words}", evidence, worst.counter.action,
                 worst.steps, facts.summary.share("straggler"), gain_s=facts.mean_s("straggler"), ranks=(late.rank,),
                 about="straggler")  # fmt: skip


def _moved(moved: Moved) -> str:
    """`25 pages swapped in or out a second in 92 % of the time by which it is late, on no other machine`."""
    where = f" ({'Xid ' if moved.counter.name == 'gpu_xid' else ''}{moved.where})" if moved.where else ""
    rate = f"{significant(moved.per_s)} {moved.counter.words}"
    rate += "" if moved.counter.is_level else " a second"
    text = f"{rate}{where} in {percent(moved.late_share)} of the time by which it is late"
    if moved.elsewhere:
        text += f", and not on other {'devices' if moved.counter.of_device else 'machines'}"
    return text


DEVICE_RULES = (
    Rule("throttling", "A device is slowed down by heat or power",
         f"{percent(THROTTLED_SHARE)} and at least {THROTTLED_READINGS} of the readings with a reason of the driver's "
         f"(or {HOT_C:.0f} °C where it gives none), a clock below {percent(THROTTLED_CLOCK)} of what it is otherwise, "
         f"and computing {percent(THROTTLED_COMPUTE - 1)} longer",
         "boost clocks move by less; a lower clock that costs nothing is no finding", 2 * THROTTLED_READINGS,
         "the driver does not tell clocks, or nothing is there to compare with: no other time and no other rank",
         throttling),
    Rule("sick_machine", "Errors or shortages of a machine while its rank is late", f"counters that moved in "
         f"{percent(MOVED_SHARE)} of the time by which a rank is late, at twice the lateness of its other steps, or on "
         "no other machine or device", "what moves anyway explains no lateness", MOVED_STEPS,
         "no rank is late, or the machine does not let its counters be read", sick_machine),
)  # fmt: skip
