"""The timeline of a device: begin and end of each step on it, and the class of each nanosecond.

A step begins when the device reaches the work that the host launched in it, as if an event had been recorded on the
computing stream. `ddlprof run` measures it that way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlprof.importing.intervals import (
    IntArray,
    Spans,
    by_priority,
    column,
    covered,
    empty,
    first_outside,
    holds,
    merged,
    union,
)
from ddlprof.importing.names import ActivityKind
from ddlprof.importing.steps import HostSteps, Steps, Transfers, backward_of_all, spans_of
from ddlprof.importing.trace_columns import TraceColumns
from ddlprof.model.records import WindowRow

_UNKNOWN_SHARE = 0.05
"""If the launch of more than this share of computing is unknown, its parts (forward, ...) are not given."""
_BEFORE_ALL = np.iinfo(np.int64).min

FORWARD, BACKWARD, OPTIMIZER, NOBODY_KNOWS = range(4)


@dataclass(frozen=True)
class DeviceActivities:
    """The activities of one device, as columns."""

    begin: IntArray
    end: IntArray
    kind: NDArray[np.int8]
    stream: NDArray[np.int32]
    message: NDArray[np.int32]
    launched: IntArray
    """When the host launched it; `_BEFORE_ALL` if before the trace began."""
    thread: NDArray[np.int32]
    """The thread that launched it; -1 if unknown, or if it launched a whole graph."""

    def of(self, kind: ActivityKind) -> NDArray[np.bool_]:
        """A mask of the activities of one kind."""
        return np.asarray(self.kind == kind)

    def spans(self, mask: NDArray[np.bool_]) -> Spans:
        """When any of the activities in the mask ran."""
        return merged(self.begin[mask], self.end[mask])


def busiest_device(found: TraceColumns) -> tuple[int, int]:
    """The device that works longest, and the number of devices."""
    device = column(found.activities.device, np.int16)
    length = column(found.activities.end) - column(found.activities.begin)
    busy = {int(d): int(length[device == d].sum()) for d in np.unique(device)}
    return max(busy, key=lambda d: (busy[d], -d)), len(busy)


def work_of(found: TraceColumns, device: int) -> DeviceActivities:
    """The activities of a device, with the time and thread of their launches."""
    activities = found.activities
    mine = column(activities.device, np.int16) == device
    begin, end = column(activities.begin)[mine], column(activities.end)[mine]
    stream = column(activities.stream, np.int32)[mine]
    correlation = column(activities.correlation)[mine]
    called = np.argsort(column(found.launch_correlation), kind="stable")
    keys = column(found.launch_correlation)[called]
    launched = np.full(len(begin), _BEFORE_ALL, dtype=np.int64)
    thread = np.full(len(begin), -1, dtype=np.int32)
    known = np.zeros(len(begin), dtype=bool)
    if len(keys):
        place = np.minimum(np.searchsorted(keys, correlation), len(keys) - 1)
        known = keys[place] == correlation
        call = called[place[known]]
        launched[known] = np.minimum(column(found.launch_time)[call], begin[known])
        thread[known] = column(found.launch_thread, np.int32)[call]
    launched[~known] = _guessed(begin, stream, known)[~known]
    return DeviceActivities(
        begin, end, column(activities.kind, np.int8)[mine], stream,
        column(activities.message, np.int32)[mine], launched, thread,
    )  # fmt: skip


def _guessed(begin: IntArray, stream: NDArray[np.int32], known: NDArray[np.bool_]) -> IntArray:
    """Launch times where they are unknown.

    For activities that come first on their stream before the trace, for others their begin.
    """
    launched = begin.copy()
    for number in np.unique(stream[known]):
        mine = stream == number
        launched[mine & ~known & (begin < begin[mine & known].min())] = _BEFORE_ALL
    return np.asarray(launched)


def reached(work: DeviceActivities, time: IntArray) -> IntArray:
    """For each moment of the host, when the device had finished what the computing stream had been given by then."""
    computing = work.of(ActivityKind.COMPUTE)
    if not computing.any():
        return time
    streams, index = np.unique(work.stream[computing], return_inverse=True)
    busy = np.bincount(index, weights=(work.end - work.begin)[computing])
    main = work.stream == streams[int(busy.argmax())]
    order = np.argsort(work.launched[main], kind="stable")
    launched = work.launched[main][order]
    through = np.concatenate([[_BEFORE_ALL], np.maximum.accumulate(work.end[main][order])])
    return np.asarray(np.maximum(time, through[np.searchsorted(launched, time, side="left")]))


def phases(work: DeviceActivities, found: TraceColumns) -> NDArray[np.int8]:
    """The part of computing (forward, ...) that each activity belongs to, by where it was launched."""
    phase = np.full(len(work.begin), FORWARD, dtype=np.int8)
    phase[work.thread < 0] = NOBODY_KNOWS
    for thread, track in found.backward.items():
        mine = work.thread == thread
        phase[mine & holds(spans_of(track), work.launched)] = BACKWARD
    updates = merged(column([u.begin for u in found.updates]), column([u.end for u in found.updates]))
    phase[(work.thread >= 0) & holds(updates, work.launched)] = OPTIMIZER
    return np.asarray(phase)


def device_steps(
    found: TraceColumns, host: HostSteps, thread: int | None, device: int
) -> tuple[Steps, WindowRow, Transfers]:
    """The steps of a device with their classes, how busy it was in them, and its collectives."""
    work = work_of(found, device)
    begin, end = reached(work, host.begin), reached(work, host.end)
    begin[1:] = np.maximum(begin[1:], end[:-1])
    compute = work.of(ActivityKind.COMPUTE)
    phase = phases(work, found)
    has_parts = bool(len(backward_of_all(found).begin)) and bool(found.updates)
    length = (work.end - work.begin)[compute]
    if has_parts and length[phase[compute] == NOBODY_KNOWS].sum() > _UNKNOWN_SHARE * max(length.sum(), 1):
        has_parts = False
    optimizer, backward = (work.spans(compute & (phase == each)) for each in (OPTIMIZER, BACKWARD))
    computing = work.spans(compute)
    comm = work.spans(work.of(ActivityKind.COMMUNICATION))
    loading = spans_of(found.loading.get(thread)) if thread is not None else empty()
    to_device = work.spans(work.of(ActivityKind.TO_DEVICE))
    of_optimizer, of_backward, of_forward, of_comm, of_copies, of_data, other = by_priority(
        (optimizer, backward, computing, comm, to_device, loading), begin, end
    )
    steps = Steps(
        number=host.number, begin=begin, end=end, compute=of_optimizer + of_backward + of_forward,
        parts=(of_forward, of_backward, of_optimizer) if has_parts else None,
        data=of_data if found.loading else None, h2d=of_copies, comm=of_comm, other=other,
    )  # fmt: skip
    at_work = union(computing, comm, to_device, work.spans(work.of(ActivityKind.FROM_DEVICE)))
    others = union(computing, to_device, work.spans(work.of(ActivityKind.FROM_DEVICE)))
    started = holds(Spans(begin, end), work.begin) & ~work.of(ActivityKind.COMMUNICATION)
    window = WindowRow(
        first_update=int(host.number[0]) if len(host) else 0,
        updates=len(host),
        window_ns=int((end - begin).sum()),
        work_ns=int(covered(at_work, begin, end).sum()),
        comm_only_ns=int((covered(union(comm, others), begin, end) - covered(others, begin, end)).sum()),
        kernels=int(started.sum()),
    )
    return steps, window, _transfers(work, computing, found)


def _transfers(work: DeviceActivities, computing: Spans, found: TraceColumns) -> Transfers:
    """The communication kernels whose collective is known, each with the exposed time that it causes.

    If several run at once, the first counts. It is needed from the moment at which computing first stopped.
    """
    mine = work.of(ActivityKind.COMMUNICATION)
    order = np.lexsort((work.stream[mine], work.end[mine], work.begin[mine]))
    begin, end, message = work.begin[mine][order], work.end[mine][order], work.message[mine][order]
    before = np.concatenate([[_BEFORE_ALL], np.maximum.accumulate(end)[:-1]]) if len(end) else end
    claimed_from = np.minimum(np.maximum(begin, before), end)
    exposed = end - claimed_from - covered(computing, claimed_from, end)
    need = first_outside(computing, claimed_from)
    return Transfers(begin, end, np.where(exposed > 0, need, -1), exposed, message, found.messages)
