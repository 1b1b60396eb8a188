"""How long the training thread was blocked between two moments, cheap enough for every step.

blocked = wall - processor time - waiting for a processor, as in `ddlprof.collect.blocked`, of one thread alone.
"""

from __future__ import annotations

import os
import time

Reading = tuple[int, bytes]
"""Processor time in nanoseconds, and what the kernel says of the thread's waiting for a processor."""


class ThreadClock:
    """Of the thread that makes it. Raises OSError where the kernel does not tell (Linux only)."""

    def __init__(self) -> None:
        self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> Reading:
        """The clocks now; a microsecond or two."""
        return time.thread_time_ns(), os.pread(self._descriptor, 64, 0)

    @staticmethod
    def blocked_ns(wall_ns: int, begin: Reading, end: Reading) -> int:
        """Of the wall time between two readings."""
        waited = int(end[1].split()[1]) - int(begin[1].split()[1])
        return min(wall_ns, max(0, wall_ns - (end[0] - begin[0]) - waited))

    def close(self) -> None:
        """Gives the descriptor back."""
        os.close(self._descriptor)
