"""How long the training thread was blocked between two moments, cheap enough for every step.

blocked = wall - processor time - waiting for a processor, as in `ddlprof.collect.blocked`, of one thread alone.
"""

from __future__ import annotations

from ddlprof.collect.kept_file import KernelFile
from ddlprof.collect.real_time import time

Reading = tuple[int, bytes]
"""Processor time in nanoseconds, and what the kernel says of the thread's waiting for a processor."""


class ThreadClock:
    """Of the thread that makes it. Raises OSError where the kernel does not tell (Linux only)."""

    def __init__(self) -> None:
        self._schedstat = KernelFile("/proc/thread-self/schedstat")

    def read(self) -> Reading:
        """The clocks now; a microsecond or two."""
        return time.thread_time_ns(), self._schedstat.read(64)

    @staticmethod
    def blocked_ns(wall_ns: int, begin: Reading, end: Reading) -> int:
        """Of the wall time between two readings; 0 where what was read is not what the kernel writes."""
        try:
            (_, before, _), (_, after, _) = map(int, begin[1].split()), map(int, end[1].split())
        except ValueError:  # the script has closed our descriptor and opened a file of its own
            return 0
        return min(wall_ns, max(0, wall_ns - (end[0] - begin[0]) - max(0, after - before)))
