"""A hook without events, around nothing: what hooks take besides their events.

Now and then it is called where an event was timed, with the caches as they are there. In a tight loop it would seem
several times cheaper.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from ddlprof.base.real_time import time


class _State:
    """What hooks look at: about as much as those of a plain step do on average."""

    def __init__(self) -> None:
        self.inside = self.running = False
        self.begin = self.end = 0
        self.clock = time.perf_counter_ns
        self.itself = weakref.ref(self)


def bare_hook() -> Callable[[], Any]:
    """As long as the hooks of a plain step are on average; each has two events."""
    original: Callable[..., Any] = bool
    state = _State()

    def is_compiling() -> bool:
        return False

    def hook(*args: Any, **kwargs: Any) -> Any:
        found = state.itself()
        if is_compiling() or found is None or found.inside:
            return original(*args, **kwargs)
        frame = sys._getframe()
        if frame.f_locals["found"] is not state or state.running:
            return original(*args, **kwargs)
        state.begin = state.clock()
        state.inside = True
        try:
            return original(*args, **kwargs)
        finally:
            state.inside = False
            state.end = state.clock()

    return hook
