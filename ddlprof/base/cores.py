"""The processor cores that this process may use."""

from __future__ import annotations

import os


def available_cores() -> int | None:
    """Cores that this process may run on; None: not known."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
