"""Finds the steps of a trace on the host: by ProfilerStep ranges, else by ends of updates, else the whole trace.

`Steps` and `Transfers` are the result on a timeline. `only_whole` handles torn traces: Kineto writes threads and
streams one after the other, so a trace cut off early may have the marks of all steps but no kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ddlprof.importing import names
from ddlprof.importing.intervals import IntArray, Spans, column, empty, merged, union
from ddlprof.importing.names import Message
from ddlprof.importing.trace_columns import NamedRange, Outermost, TraceColumns

_SHORT_SHARE = 0.1
"""A last range shorter than this share of the others' median is the beginning of a step, unless something else
tells."""


@dataclass(frozen=True)
class HostSteps:
    """Steps in order, on the host's clock, without overlaps."""

    number: IntArray
    begin: IntArray
    end: IntArray
    thread: int | None
    """The training thread, if a range tells it."""
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.number)


def host_steps(found: TraceColumns) -> HostSteps:
    """The whole steps of a trace. Steps cut off by its begin or end are left out, with a note."""
    updates = _outermost(found.updates)
    marked = _marked(found.steps) or _marked(found.steps_on_device)  # in a trace without host events
    if marked:
        return _of_marks(marked, updates, found)
    ends = _ends_of_updates(updates, found)
    if len(ends) > 1:
        note = (
            "no ProfilerStep ranges: a step goes from the end of an update to the end of the next, and what comes "
            "before the first and after the last is left out"
        )
        number = np.arange(len(ends) - 1, dtype=np.int64)
        return HostSteps(number, ends[:-1], ends[1:], updates[0].thread, [note])
    return _whole(found, updates)


def _marked(ranges: Sequence[NamedRange]) -> list[tuple[int, NamedRange]]:
    """Number and range of each mark. Of overlapping marks, as on two threads, the longest counts."""
    chosen: list[tuple[int, NamedRange]] = []
    for each in sorted(ranges, key=lambda r: (r.begin, -r.end, r.thread)):
        match = names.STEP.fullmatch(each.name)
        if match is None or each.end <= each.begin or (chosen and each.begin < chosen[-1][1].end):
            continue
        if not chosen or int(match[1]) > chosen[-1][0]:
            chosen.append((int(match[1]), each))
    return chosen


def _of_marks(marked: list[tuple[int, NamedRange]], updates: list[NamedRange], found: TraceColumns) -> HostSteps:
    notes = []
    with_update = [any(r.begin <= u.begin < r.end for u in updates) for _, r in marked]
    kept = [True] * len(marked)
    if len(marked) > 1:
        for index in (0, len(marked) - 1):
            kept[index] = not _is_cut(index, marked, with_update, found)
    dropped = [number for (number, _), keep in zip(marked, kept, strict=True) if not keep]
    if dropped:
        listed = " and ".join(f"ProfilerStep#{number}" for number in dropped)
        notes.append(f"{listed} left out: cut off by the begin or end of the trace")
    whole = [(mark, has) for mark, has, keep in zip(marked, with_update, kept, strict=True) if keep]
    without = sum(not has for _, has in whole)
    if updates and without:
        notes.append(
            f"{without} of {len(whole)} ProfilerStep ranges hold no update: a step is what the script called a step"
        )
    number = np.array([number for (number, _), _ in whole], dtype=np.int64)
    begin = np.array([r.begin for (_, r), _ in whole], dtype=np.int64)
    end = np.array([r.end for (_, r), _ in whole], dtype=np.int64)
    return HostSteps(number, begin, end, thread if (thread := marked[0][1].thread) >= 0 else None, notes)


def _is_cut(index: int, marked: list[tuple[int, NamedRange]], with_update: list[bool], found: TraceColumns) -> bool:
    """Whether a range at an end of the trace is part of a step only: it lacks the update that others have."""
    others = [has for i, has in enumerate(with_update) if i != index]
    if any(with_update):
        return all(others) and not with_update[index]
    lengths = [r.end - r.begin for _, r in marked]
    typical = float(np.median([length for i, length in enumerate(lengths) if i != index]))
    return index > 0 and lengths[index] < _SHORT_SHARE * typical and not _launches_in(found, marked[index][1])


def _launches_in(found: TraceColumns, of: NamedRange) -> bool:
    times = column(found.launch_time)
    return bool(((times >= of.begin) & (times < of.end)).any())


def _outermost(ranges: Sequence[NamedRange]) -> list[NamedRange]:
    """The updates that are not inside another one."""
    kept: list[NamedRange] = []
    for each in sorted(ranges, key=lambda r: (r.begin, -r.end, r.thread, r.name)):
        if not kept or each.end > kept[-1].end:
            kept.append(each)
    return kept


def _ends_of_updates(updates: list[NamedRange], found: TraceColumns) -> IntArray:
    """The end of each update. Several optimizers between two backward passes make one update.

    In a trace without backward passes, only the updates with the name that takes most time count.
    """
    backward = backward_of_all(found)
    if not len(backward.begin):
        taken: dict[str, int] = {}
        for each in updates:
            taken[each.name] = taken.get(each.name, 0) + each.end - each.begin
        anchor = max(taken, key=lambda name: (taken[name], name), default="")
        return np.array([each.end for each in updates if each.name == anchor], dtype=np.int64)
    ends: list[int] = []
    passes_before = -1
    for each in updates:
        passes = int(np.searchsorted(backward.begin, each.begin))
        if ends and passes == passes_before:
            ends[-1] = max(ends[-1], each.end)
        else:
            ends.append(each.end)
        passes_before = passes
    return np.array(ends, dtype=np.int64)


def _whole(found: TraceColumns, updates: list[NamedRange]) -> HostSteps:
    tracks = [found.activities, *found.operators.values(), *found.backward.values()]
    begins = [min(track.begin) for track in tracks if len(track)]
    ends = [max(track.end) for track in tracks if len(track)]
    why = "a single update" if updates else "neither ProfilerStep nor optimizer ranges"
    note = f"{why} in the trace: all of it is taken as one step"
    if not begins:
        nothing = np.zeros(0, dtype=np.int64)
        return HostSteps(nothing, nothing, nothing, None, ["the trace holds no operators and no kernels"])
    begin, end = (np.array([value], dtype=np.int64) for value in (min(begins), max(ends)))
    thread = updates[0].thread if updates else None
    return HostSteps(np.zeros(1, dtype=np.int64), begin, end, thread, [note])


def spans_of(track: Outermost | None, pause: int = 0) -> Spans:
    """The spans of one thread."""
    if track is None or not len(track):
        return empty()
    return merged(column(track.begin), column(track.end), pause)


def backward_of_all(found: TraceColumns) -> Spans:
    """The spans in which any thread was in a function of a backward pass."""
    return union(empty(), *(spans_of(track) for track in found.backward.values()))


def training_thread(found: TraceColumns, steps: HostSteps) -> int | None:
    """The training thread: that of the steps' ranges, else the one that spends most time in operators."""
    if steps.thread is not None:
        return steps.thread
    time = {thread: int((spans := spans_of(track)).end.sum() - spans.begin.sum())
            for thread, track in found.operators.items()}  # fmt: skip
    return max(time, key=lambda thread: (time[thread], -thread), default=None)


def passes_in(steps_begin: IntArray, steps_end: IntArray, forward: Spans, backward: Spans, loading: Spans) -> IntArray:
    """The number of backward passes in each step: how often backward follows forward, at most once for each batch."""
    times = np.concatenate([forward.begin, backward.begin])
    is_backward = np.concatenate([np.zeros(len(forward.begin), dtype=bool), np.ones(len(backward.begin), dtype=bool)])
    order = np.argsort(times, kind="stable")
    times, is_backward = times[order], is_backward[order]
    starts = times[is_backward & ~np.concatenate([[False], is_backward[:-1]])]

    def count(of: IntArray) -> IntArray:
        return np.asarray(np.searchsorted(of, steps_end) - np.searchsorted(of, steps_begin), dtype=np.int64)

    passes = count(starts)
    return np.minimum(passes, np.maximum(count(loading.begin), 1)) if len(loading.begin) else passes


@dataclass(frozen=True)
class Steps:
    """The steps of a timeline by class: columns of ns with a row for each step; None: not measured."""

    number: IntArray
    begin: IntArray
    end: IntArray
    compute: IntArray | None
    parts: tuple[IntArray, IntArray, IntArray] | None
    """Forward, backward and optimizer, which add up to `compute`."""
    data: IntArray | None
    h2d: IntArray | None
    comm: IntArray | None
    other: IntArray

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True)
class Transfers:
    """The collectives of a timeline in order; times in ns."""

    ready: IntArray
    end: IntArray
    need: IntArray
    """When computing first waited for it; -1 if nothing waited."""
    exposed: IntArray
    message: NDArray[np.int32]
    """The index into `messages`; -1 if it is unknown which collective it is."""
    messages: list[Message]


_MISSING_SHARE = 0.02
"""The share of launches without a recorded kernel from which on a trace counts as torn. In whole traces it is less."""

_BUSY_SHARE = 0.05
"""The share of all launches that a thread needs to count as one that launches in every step."""


def only_whole(found: TraceColumns, steps: HostSteps, thread: int | None) -> HostSteps:
    """The steps of a torn trace of which nothing seems to be missing."""
    whole = (
        _on_device(found, steps) if len(found.launch_time) or len(found.activities) else _on_host(found, steps, thread)
    )
    left_out = int((~whole).sum())
    if not left_out:
        return steps
    note = f"{left_out} of {len(steps)} steps left out: what they did is in the part that was torn off"
    return replace(
        steps, number=steps.number[whole], begin=steps.begin[whole], end=steps.end[whole], notes=[*steps.notes, note]
    )


def _on_device(found: TraceColumns, steps: HostSteps) -> NDArray[np.bool_]:
    """Whether each step is whole on the device.

    It has launches, nearly all have their kernels, and every thread that launches much goes on after it.
    """
    times, threads = column(found.launch_time), column(found.launch_thread, np.int32)
    busy = [times[threads == each] for each in np.unique(threads)]
    ends = [int(mine.max()) for mine in busy if len(mine) > _BUSY_SHARE * len(times)]
    missing = ~np.isin(column(found.launch_correlation), column(found.activities.correlation))
    launches, lost = _count(times, steps), _count(times[missing], steps)
    return (launches > 0) & (lost <= _MISSING_SHARE * launches) & (steps.end <= min(ends, default=-1))


def _on_host(found: TraceColumns, steps: HostSteps, thread: int | None) -> NDArray[np.bool_]:
    """Whether each step is whole on the host.

    The thread goes on after it, and each collective issued in it was carried out.
    """
    track = found.operators.get(thread) if thread is not None else None
    last = max(track.begin) if track is not None and len(track) else -1
    issued = np.sort(column([begin for begin, *_ in found.issued]))
    carried_out = np.sort(column([begin for begin, *_ in found.transfers]))
    upto = np.searchsorted(issued, steps.end)
    return (steps.end <= last) & (np.searchsorted(carried_out, steps.end) >= upto - 1)


def _count(times: IntArray, steps: HostSteps) -> IntArray:
    ordered = np.sort(times)
    return np.asarray(np.searchsorted(ordered, steps.end) - np.searchsorted(ordered, steps.begin))
