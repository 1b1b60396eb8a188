"""How long a thread or process was blocked, as opposed to computing or waiting for a processor.

blocked = wall - processor time - processor time of finished children - waiting for a processor. A thread's run-queue
delay (second field of /proc/.../schedstat, no root needed) is what tells a sleep from a burn when there are more
runnable threads than cores. Linux only; elsewhere `BlockedClock.available` is False.

The delays of several threads are not added up: sixteen that wait together for 10 ms are 10 ms of waiting, not 160. So
processor time and waiting together are the processor time of all threads (they mostly take turns, for the interpreter's
lock), or, where that is longer, the time in which the thread that was runnable longest ran or waited for a processor.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import NamedTuple

from ddlprof.base.real_time import time
from ddlprof.collect.process.thread_clock import ThreadClock

_SPIN_NS = 8_000_000
"""OpenMP's threads spin this long after a parallel region (3-7 ms seen with libgomp) before they sleep."""


Raw = tuple[int, int, int, "os.times_result", bytes, Mapping[int, int]]
"""A reading as the kernel gives it: working it out can wait, and what little is done at a fetch is done with caches
that the training has emptied."""


class Reading(NamedTuple):
    """Cumulative nanoseconds."""

    wall: int
    own_cpu: int
    process_cpu: int
    children_cpu: int
    runnable: Mapping[int, int]
    """The state by thread: running, or waiting for a processor."""


def _runnable_ns(thread: int) -> int:
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            running, waiting, _ = map(int, file.read().split())
    except OSError:  # the thread ended meanwhile
        return 0
    return running + waiting


class BlockedClock:
    """The clock of a whole worker process (`whole_process`), or of the thread that makes it.

    In a training process the processor time of the other threads counts only beyond what OpenMP's spinning
    explains, since a sleep after a parallel region would otherwise look like work.
    """

    def __init__(self, whole_process: bool) -> None:
        self._whole = whole_process
        self._spin_ns = 0 if whole_process else _SPIN_NS * max(1, (os.cpu_count() or 1) - 1)
        self.available = os.path.exists("/proc/self/schedstat")
        if self.available:
            self._thread = threading.get_native_id()
            self._own = ThreadClock()

    def read(self) -> Raw:
        """The current reading; some microseconds. To be called in the thread that made the clock."""
        others: Mapping[int, int] = {}
        if self._whole:
            threads = map(int, os.listdir("/proc/self/task"))
            others = {thread: _runnable_ns(thread) for thread in threads if thread != self._thread}
        own, schedstat = self._own.cpu_ns(), self._own.waiting()
        process, children = time.process_time_ns(), os.times()
        return time.perf_counter_ns(), own, process, children, schedstat, others

    def doubt(self) -> None:
        """To be called by a reader of what are no figures; in any thread."""
        self._own.doubt()

    def reading(self, raw: Raw) -> Reading:
        """What was read; in any thread. Raises ValueError if it is not what the kernel writes."""
        wall, own, process, times, schedstat, others = raw
        # The thread's own clock is exact, while the kernel brings schedstat up to date only now and then.
        runnable = {**others, self._thread: own + ThreadClock.delay_ns(schedstat)}
        children = int((times.children_user + times.children_system) * 1e9)
        return Reading(wall, process if self._whole else own, process, children, runnable)

    def blocked_and_cpu_ns(self, begin: Reading, end: Reading) -> tuple[int, int]:
        """Times between two readings: blocked, between 0 and the wall time, and processor time, of all cores."""
        own = end.own_cpu - begin.own_cpu
        others = (end.process_cpu - begin.process_cpu) - own
        others = max(0, others - self._spin_ns)
        children = end.children_cpu - begin.children_cpu
        wall = end.wall - begin.wall
        longest = max((time_ns - begin.runnable.get(thread, 0) for thread, time_ns in end.runnable.items()), default=0)
        busy = max(own + others, longest) + children
        return min(wall, max(0, wall - busy)), own + others + children
