"""Short torch.profiler windows on an accelerator: how much of the device's time is idle inside a step.

A window covers two steps every few hundred, none where steps are tiny; its steps are flagged `traced` and leave the
headline. All ranks open theirs at the same update, so that no rank waits for another's profiler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind
from ddlprof.model.records import WindowRow

FIRST_UPDATE = 50
EVERY_UPDATES = 500
WINDOW_UPDATES = 2
SMALLEST_STEP_NS = 5_000_000
MOST_WINDOWS = 20
"""Enough for a mean; afterwards the run is left alone."""
_COMMUNICATION = ("nccl", "rccl", "all_reduce", "allreduce", "all_gather", "reduce_scatter", "sendrecv")


class Activity(NamedTuple):
    """Something the device did: nanoseconds on the device's clock."""

    name: str
    begin: int
    end: int


class ProfilerWindows:
    """Opens and closes windows at the updates, in the training thread; `take` gives finished ones to the helper."""

    def __init__(
        self, recorder: Recorder, make_profiler: Callable[[], Any], activities: Callable[[Any], list[Activity]]
    ) -> None:
        self.recorder = recorder
        self.step_ns = 0
        """Mean step, set by the helper thread; no window before it is known."""
        self.failure: str | None = None
        self._make_profiler = make_profiler
        self._activities = activities
        self._profiler: Any = None
        self._next = FIRST_UPDATE
        self._first = self._left = self._opened = 0
        self._finished: deque[tuple[int, Any]] = deque()

    def at_update(self, updates: int) -> None:
        """Called after each optimizer update."""
        try:
            if self._profiler is not None:
                self._left -= 1
                self.recorder.emit(Kind.TRACED)
                if not self._left:
                    self.recorder.charge(self._close)
            elif updates >= self._next and self.failure is None and self._opened < MOST_WINDOWS:
                self._next = updates + EVERY_UPDATES
                if self.step_ns >= SMALLEST_STEP_NS:
                    self.recorder.charge(lambda: self._open(updates))
        except Exception as error:  # fail open: no more windows
            self._profiler = None
            self.failure = f"{type(error).__name__}: {error}"

    def _open(self, updates: int) -> None:
        self.recorder.emit(Kind.TRACED)
        profiler = self._make_profiler()
        profiler.start()
        self._profiler, self._first, self._left = profiler, updates, WINDOW_UPDATES
        self._opened += 1

    def _close(self) -> None:
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        self._finished.append((self._first, profiler))

    def take(self) -> list[WindowRow]:
        """What the windows that closed since the last call say; called in the helper thread."""
        rows = []
        while self._finished:
            first, profiler = self._finished.popleft()
            row = summarise(first, WINDOW_UPDATES, self._activities(profiler))
            if row is not None:
                rows.append(row)
        return rows


def covered_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union of `(begin, end)` intervals."""
    total, reach = 0, None
    for begin, end in sorted(intervals):
        if reach is None or begin > reach:
            total += end - begin
            reach = end
        elif end > reach:
            total += end - reach
            reach = end
    return total


def summarise(first: int, updates: int, activities: list[Activity]) -> WindowRow | None:
    """Busy, communication-only and total time of a window, from its first activity to its last; None if empty."""
    if not activities:
        return None
    everything = covered_ns((a.begin, a.end) for a in activities)
    works = [(a.begin, a.end) for a in activities if not is_communication(a.name)]
    work = covered_ns(works)
    span = max(a.end for a in activities) - min(a.begin for a in activities)
    return WindowRow(first, updates, span, work, everything - work, len(works))


def is_communication(name: str) -> bool:
    """Whether a kernel moves data between devices; several libraries' names."""
    lower = name.lower()
    return any(part in lower for part in _COMMUNICATION)


def cuda_windows(recorder: Recorder, torch: Any) -> ProfilerWindows:
    """Windows by torch.profiler with device activities only, read in their raw form."""
    cuda = torch.autograd.DeviceType.CUDA

    def make() -> Any:
        return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def activities(profiler: Any) -> list[Activity]:
        return [
            Activity(e.name(), e.start_ns(), e.start_ns() + e.duration_ns())
            for e in profiler.profiler.kineto_results.events()
            if e.device_type() == cuda
        ]

    return ProfilerWindows(recorder, make, activities)
