"""How long this process has existed. Linux only, to a hundredth of a second."""

from __future__ import annotations

import os
import time

_STARTED = 19
"""`starttime` of proc(5), counted from the field after the name, which may hold anything."""


def age_ns() -> int | None:
    """Nanoseconds since the kernel made this process; None where it does not tell."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[_STARTED])
        since_boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        age = since_boot - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return age if ticks and age >= 0 else None
