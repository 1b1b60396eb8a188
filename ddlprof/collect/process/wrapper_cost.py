"""What a hook costs around the call that it wraps, besides recording its two events.

Measured inside the run with cold caches, as a training step leaves them: in a tight loop the same wrapper looks several
times cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddlprof.collect.process.real_time import time

REPEATS = 9
_BALLAST_BYTES = 4 << 20
"""More than a core's own caches hold."""


def wrapper_cost_ns(clock: Callable[[], int] = time.perf_counter_ns) -> int:
    """Nanoseconds of an event: half of what wrapping a call in a hook that records nothing adds to it; about 20 ms."""
    ballast = bytearray(_BALLAST_BYTES)

    def timed(function: Callable[..., Any]) -> int:
        ballast.count(b"x")
        begin = clock()
        function(1, b=2)
        return clock() - begin

    wrapped = _wrapped(_original)
    differences = sorted(timed(wrapped) - timed(_original) for _ in range(REPEATS))
    return max(0, differences[REPEATS // 2] // 2)


def _original(a: int, b: int) -> None:
    """Does nothing."""


def _wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper of the same form as those of the hooks."""
    nested = False

    def emit(kind: int, a: Any = None, b: Any = None, c: Any = None) -> bool:
        return True

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal nested
        if nested or not emit(0):
            return original(*args, **kwargs)
        nested = True
        try:
            return original(*args, **kwargs)
        finally:
            nested = False
            emit(1)

    return wrapper
