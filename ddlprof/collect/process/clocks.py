"""How long the training thread computed, and waited for a processor, between two moments. Fast enough for every step.

In the rest of the time it was blocked. `ddlprof.collect.loader.fetch_meter` measures the same of whole processes.
"""

from __future__ import annotations

import os
import time as system
from collections.abc import Callable
from functools import partial

from ddlprof.base.kept_file import KernelFile
from ddlprof.base.real_time import time

Reading = tuple[int, bytes]
"""Processor time in ns, and the kernel's line on how long the thread waited for a processor."""


class ThreadClock:
    """The clock of the thread that creates it.

    Raises OSError where the kernel does not provide these times (not Linux).
    """

    def __init__(self) -> None:
        self.cpu_ns: Callable[[], int] = time.thread_time_ns
        """Returns the processor time so far, in ns."""
        self._schedstat = KernelFile("/proc/thread-self/schedstat")
        self.waiting: Callable[[], bytes] = partial(self._schedstat.read, 64)
        """Returns the kernel's line on waiting for a processor. With cold caches it takes ten times as long as
        `cpu_ns`."""

    def doubt(self) -> None:
        """Called if a reading was not valid; makes the next reading open the kernel's file again.

        Any thread may call it.
        """
        self._schedstat.doubt()

    @staticmethod
    def delay_ns(schedstat: bytes) -> int:
        """The wait for a processor so far, in ns. Raises ValueError if the text is not in the kernel's form."""
        _, delay, _ = map(int, schedstat.split())
        return delay

    @staticmethod
    def waited_ns(begin: Reading, end: Reading) -> int:
        """The time between two readings in which the thread waited for a processor, in ns; 0 if not readable."""
        try:
            return max(0, ThreadClock.delay_ns(end[1]) - ThreadClock.delay_ns(begin[1]))
        except ValueError:  # the script has closed our descriptor, and its number now belongs to another file
            return 0


_STARTED = 19
"""The field `starttime` of proc(5), counted after the process's name, which may contain spaces."""


def age_ns() -> int | None:
    """Nanoseconds since the kernel made this process; None if unknown."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[_STARTED])
        since_boot = system.clock_gettime_ns(system.CLOCK_BOOTTIME)
        age = since_boot - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return age if ticks and age >= 0 else None
