"""A hook without events, around nothing: what hooks take besides their events.

Now and then it is called where an event was timed, with the caches as they are there. In a tight loop it would seem
several times cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def bare_hook() -> Callable[[], Any]:
    """Of the same form as the hooks, each of which has two events."""
    original: Callable[..., Any] = bool
    state = SimpleNamespace(inside=False, running=0)

    def is_compiling() -> bool:
        return False

    def hook(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or state.inside:
            return original(*args, **kwargs)
        state.inside = True
        try:
            return original(*args, **kwargs)
        finally:
            state.inside = False
            state.running = 0

    return hook
