"""Short profiler windows: how long the device is idle in a step, and how long collectives take.

Used only if the user asked for them.

A window is opened after an update and closed some updates later. Two whole steps in between are measured: from the end
of the step in which the window was opened to the end of a step that the device has passed when the window is closed.
All kernels of these steps then ran while the profiler was on, although nothing waits for the device. All ranks open
windows at the same updates, so that no rank waits for another's profiler. All steps of a window are flagged `traced`
and do not count for the headline.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddlprof.base.real_time import time
from ddlprof.collect.accelerator.protocol import DeviceProfiler
from ddlprof.collect.drops import WINDOW
from ddlprof.collect.install import Uninstall, all_of, fail_open
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind
from ddlprof.model.kernels import Activity, is_communication, match_kernels
from ddlprof.model.records import WindowRow
from ddlprof.writing.writer import FinishedStep

FIRST_UPDATE = 50
EVERY_UPDATES = 500
MEASURED_STEPS = 2
MOST_BEHIND = 16
"""The number of updates that a window waits for the device; then it is closed without a result."""
MOST_S = 30
"""Seconds after which an open window is thrown away, because a record of every kernel is kept in memory."""
_KEPT_STEPS = 64


@dataclass
class _Window:
    """One window. Marks are counts of updates and rounds, as in `Recorder.marks`."""

    first_update: int
    since: int = 0
    """The mark after which steps are measured."""
    until: int = 0
    """The mark up to which steps are measured."""
    updates: int = 0
    """The number of updates since the window was opened."""
    passed: Any = None
    """The device event recorded at `until`."""
    opened_s: float = 0.0
    result: Any = None
    unix_offset_ns: int = 0
    """Unix time minus the clock of the steps, in ns."""


class ProfilerWindows:
    """Opens and closes windows at updates, in the training thread.

    The helper thread calls the methods from `step_ended` on.
    """

    def __init__(
        self, recorder: Recorder, profiler: DeviceProfiler, most: int, record: Callable[[], Any],
        note: Callable[[str, str], None] = lambda source, message: None, device_free: threading.Lock | None = None,
    ) -> None:  # fmt: skip
        """`most`: the largest number of windows. `note`: is called with source and text of a note for the report.

        `record`: records a device event on the stream of the steps; returns None during a capture. `device_free`: a
        lock that is held while any thread captures a graph.
        """
        self._recorder = recorder
        self._profiler = profiler
        self._most = most
        self._record = record
        self._note = note
        self._device_free = device_free or threading.Lock()
        self._next = FIRST_UPDATE
        self._window: _Window | None = None
        self._opened = self._read = 0
        self._failed = self._unwanted = False
        self._updates_a_step = 1
        self._finished: deque[_Window] = deque()
        self._steps: deque[FinishedStep] = deque(maxlen=_KEPT_STEPS)

    # -- in the training thread -----------------------------------------------------------------------------------

    def at_update(self, updates: int) -> None:
        """Called after each optimizer update, with the number of updates so far."""
        try:
            if self._unwanted:
                self._unwanted = False
                self.close()
            elif self._window is not None:
                self._go_on(self._window)
            elif updates >= self._next and self._opened < self._most and not self._failed:
                self._next = updates + EVERY_UPDATES
                self._recorder.charge(lambda: self._open(updates))
        except Exception as error:
            self._fail(error)

    def close(self) -> None:
        """Closes the open window without a result."""
        window, self._window = self._window, None
        self._recorder.in_window = None
        if window is not None:
            try:
                self._profiler.stop()
            except Exception as error:
                self._give_up(error)

    def end(self) -> None:
        """Closes the open window and opens no further one."""
        self._failed = True
        self.close()

    def make_way(self) -> None:
        """Called when the script's profiler starts.

        If that is in another thread, our window is closed at the next update.
        """
        if self._window is None:
            return
        self._lose("the script started a profiler of its own")
        self._unwanted = threading.get_ident() != self._recorder.thread
        if not self._unwanted:
            self.close()

    def _open(self, updates: int) -> None:
        reason = self._profiler.why_not()
        if reason is not None:
            self._lose(reason)
            return
        self._recorder.emit(Kind.TRACED)
        self._recorder.loop.close_log()
        self._opened += 1
        self._profiler.start()
        self._window = _Window(updates, opened_s=time.perf_counter())
        self._recorder.in_window = self._limit

    def _limit(self) -> None:
        window = self._window
        if window is not None and time.perf_counter() - window.opened_s > MOST_S:
            self._lose(f"it would have been open for over {MOST_S} s")
            self.close()

    def _go_on(self, window: _Window) -> None:
        self._recorder.emit(Kind.TRACED)
        window.updates += 1
        measured = (MEASURED_STEPS + 1) * self._updates_a_step - 1  # plus the rest of the step in which it was opened
        if window.updates == 1:
            window.since = self._recorder.marks
        elif window.updates == 1 + measured:
            window.until, window.passed = self._recorder.marks, self._record()
        elif self._has_passed(window.passed):
            self._recorder.charge(lambda: self._finish(window))
        elif window.updates > 1 + measured + MOST_BEHIND:
            self.close()
            self._lose(f"the device was over {MOST_BEHIND} updates behind")

    def _has_passed(self, event: Any) -> bool:
        """Whether the device has passed an event; False during a capture, which a query would end."""
        if event is None or not self._device_free.acquire(blocking=False):
            return False
        try:
            return bool(event.query())
        finally:
            self._device_free.release()

    def _finish(self, window: _Window) -> None:
        self._window = self._recorder.in_window = None
        window.result = self._profiler.stop()
        window.unix_offset_ns = time.time_ns() - time.perf_counter_ns()
        self._finished.append(window)

    def _lose(self, reason: Exception | str, count: int = 1) -> None:
        self._recorder.drops.add(WINDOW, reason, count)

    def _fail(self, error: Exception) -> None:
        """Opens no further windows after an error; the rest of the measurement goes on."""
        self._lose(error)
        self.close()
        self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        self._note("windows", f"ended after {self._read} of {self._most}: {type(error).__name__}: {error}")

    def install(self) -> Uninstall:
        """Makes windows give way to the script's profilers.

        The returned function ends that and closes the open window.
        """
        if self._profiler.warning is not None:
            self._note("windows", self._profiler.warning)
        return all_of(self._profiler.watch(fail_open(self.make_way, self._recorder)), self.end)

    # -- in the helper thread -------------------------------------------------------------------------------------

    def step_ended(self, step: FinishedStep) -> None:
        """Called with each step in order, before it is written."""
        if self._steps:
            self._updates_a_step = max(1, step.marks - self._steps[-1].marks)
        self._steps.append(step)

    def busy(self) -> bool:
        """Whether a window is open or not yet read, so that durations of collectives may still come."""
        return self._window is not None or bool(self._finished)

    def take(self, last: bool = False) -> list[WindowRow]:
        """A row for each window closed since the last call. `last`: no step will follow."""
        rows: list[WindowRow] = []
        try:
            while self._finished and (last or (self._steps and self._steps[-1].marks >= self._finished[0].until)):
                window = self._finished.popleft()
                row = self._read_window(window)
                self._read += 1
                if row is not None:
                    rows.append(row)
                else:
                    self._lose("the profiler recorded no work of the device in its steps")
        except Exception as error:
            self._lose(error, 1 + len(self._finished))
            self._finished.clear()
            self._give_up(error)
        return rows

    def _read_window(self, window: _Window) -> WindowRow | None:
        steps = _measured(window, self._steps)
        activities = self._profiler.activities(window.result)
        window.result = None
        if not steps:
            return None
        begin, end = steps[0].start, steps[-1].start + steps[-1].row.step_ns
        offset = window.unix_offset_ns
        row = summarise(window.first_update, len(steps), activities, begin + offset, end + offset)
        if row is not None:
            _give_durations(steps, [a for a in activities if begin <= a.begin - offset < end])
        return row


def _measured(window: _Window, steps: Iterable[FinishedStep]) -> list[FinishedStep]:
    """The steps that lie wholly between the marks of a window."""
    found: list[FinishedStep] = []
    before: FinishedStep | None = None
    for step in steps:
        if before is not None and before.marks >= window.since and step.marks <= window.until:
            found.append(step)
        before = step
    return found


def _give_durations(steps: Sequence[FinishedStep], activities: Sequence[Activity]) -> None:
    """Sets the durations of the collectives of these steps, if each collective has one kernel.

    Does nothing if there are several groups: their kernels overlap, so the order does not tell which is whose.
    """
    collectives = [each for step in steps for each in step.collectives]
    if len({each.group for each in collectives}) != 1:
        return
    kernels = sorted((a for a in activities if is_communication(a.name)), key=lambda a: a.begin)
    durations = match_kernels([each.op for each in collectives], kernels)
    for collective, duration in zip(collectives, durations or (), strict=False):
        collective.duration = duration


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


def summarise(first: int, updates: int, activities: Sequence[Activity], begin: int, end: int) -> WindowRow | None:
    """Total time, time with work, and time with communication only, in ns, between `begin` and `end`.

    None if the device did nothing in that time.
    """
    inside = [(max(a.begin, begin), min(a.end, end), a) for a in activities if a.begin < end and a.end > begin]
    if not inside:
        return None
    everything = covered_ns((b, e) for b, e, _ in inside)
    works = [(b, e, a) for b, e, a in inside if not is_communication(a.name)]
    work = covered_ns((b, e) for b, e, _ in works)
    kernels = sum(begin <= a.begin for _, _, a in works)
    return WindowRow(first, updates, end - begin, work, everything - work, kernels)
