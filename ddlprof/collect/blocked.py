"""How long a thread or process was blocked, as opposed to computing or waiting for a processor.

blocked = wall - processor time - processor time of finished children - run-queue delay. The run-queue delay
(second field of /proc/.../schedstat, no root needed) is what tells a sleep from a burn when there are more
runnable threads than cores. Linux only; elsewhere `BlockedClock.available` is False.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

_SPIN_NS = 8_000_000
"""OpenMP's threads spin this long after a parallel region (3-7 ms seen with libgomp) before they sleep."""


class Reading(NamedTuple):
    """Cumulative nanoseconds."""

    wall: int
    own_cpu: int
    process_cpu: int
    children_cpu: int
    run_queue: int


def _run_queue_ns(task: str) -> int:
    try:
        with open(f"/proc/self/task/{task}/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except OSError:  # the thread ended meanwhile
        return 0


def _children_ns() -> int:
    times = os.times()
    return int((times.children_user + times.children_system) * 1e9)


class BlockedClock:
    """Of a whole worker process (`whole_process`), or of the thread that makes it.

    In a training process the processor time of the other threads counts only beyond what OpenMP's spinning
    explains, since a sleep after a parallel region would otherwise look like work.
    """

    def __init__(self, whole_process: bool) -> None:
        self._whole = whole_process
        self._descriptor: int | None = None
        self._spin_ns = 0 if whole_process else _SPIN_NS * max(1, (os.cpu_count() or 1) - 1)
        self.available = os.path.exists("/proc/self/schedstat")
        if self.available and not whole_process:
            self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> Reading:
        """The current reading; some microseconds."""
        if self._whole:
            queue = sum(_run_queue_ns(task) for task in os.listdir("/proc/self/task"))
            process = time.process_time_ns()
            return Reading(time.perf_counter_ns(), process, process, _children_ns(), queue)
        assert self._descriptor is not None
        queue = int(os.pread(self._descriptor, 64, 0).split()[1])
        return Reading(
            time.perf_counter_ns(), time.thread_time_ns(), time.process_time_ns(), _children_ns(), queue
        )  # fmt: skip

    def blocked_ns(self, begin: Reading, end: Reading) -> int:
        """Time blocked between two readings, between 0 and the wall time."""
        wall = end.wall - begin.wall
        own = end.own_cpu - begin.own_cpu
        others = (end.process_cpu - begin.process_cpu) - own
        others = max(0, others - self._spin_ns)
        children = end.children_cpu - begin.children_cpu
        queue = end.run_queue - begin.run_queue
        return min(wall, max(0, wall - own - others - children - queue))
