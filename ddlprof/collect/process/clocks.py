"""How long the training thread computed and waited for a processor between two moments, cheap enough for every step.

What is left of the time it was blocked; `ddlprof.collect.loader.fetch_meter` says so of whole processes, too.
"""

from __future__ import annotations

import os
import time as system
from collections.abc import Callable
from functools import partial

from ddlprof.base.real_time import time
from ddlprof.collect.process.kept_file import KernelFile

Reading = tuple[int, bytes]
"""Processor time in nanoseconds, and what the kernel says of the thread's waiting for a processor."""


class ThreadClock:
    """The clock of the thread that makes it. Raises OSError where the kernel does not tell (Linux only)."""

    def __init__(self) -> None:
        self.cpu_ns: Callable[[], int] = time.thread_time_ns
        """Processor time so far."""
        self._schedstat = KernelFile("/proc/thread-self/schedstat")
        self.waiting: Callable[[], bytes] = partial(self._schedstat.read, 64)
        """What the kernel says of waiting for a processor; takes ten times as long as `cpu_ns`, with cold caches."""

    def doubt(self) -> None:
        """To be called by a reader of what are no figures; in any thread."""
        self._schedstat.doubt()

    @staticmethod
    def delay_ns(schedstat: bytes) -> int:
        """Waiting for a processor so far. Raises ValueError if it is not what the kernel writes."""
        _, delay, _ = map(int, schedstat.split())
        return delay

    @staticmethod
    def waited_ns(begin: Reading, end: Reading) -> int:
        """Time between two readings, ready but without a processor; 0 where it was not read or understood."""
        try:
            return max(0, ThreadClock.delay_ns(end[1]) - ThreadClock.delay_ns(begin[1]))
        except ValueError:  # the script has closed our descriptor and opened a file of its own
            return 0


_STARTED = 19
"""`starttime` of proc(5), counted from the field after the name, which may hold anything."""


def age_ns() -> int | None:
    """Nanoseconds since the kernel made this process; None where it does not tell."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[_STARTED])
        since_boot = system.clock_gettime_ns(system.CLOCK_BOOTTIME)
        age = since_boot - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return age if ticks and age >= 0 else None
