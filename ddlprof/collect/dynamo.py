"""What torch.compile has done in this process; never imports its machinery."""

from __future__ import annotations

import sys
from typing import Any


def used_dynamo() -> bool:
    """Whether torch.compile has compiled anything."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return any(sum(counters[name].values()) for name in ("frames", "stats") if name in counters)


def compilations() -> int:
    """Graphs that torch.compile has compiled so far."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters else 0
