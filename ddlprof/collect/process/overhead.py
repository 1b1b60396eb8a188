"""What ddlprof's hooks cost, estimated from a random sample of the calls.

The choice of calls is random and independent of the script's loop. Otherwise the estimate might contain only the first
steps of epochs, or never these. It measures processor time: if the hook is interrupted by another process, such as a
loader worker, that takes a hundred times as long as the hook and has nothing to do with it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from ddlprof.base.real_time import time


class SampledCost:
    """The cost of what happens between `begin` and `end`. On average one in `every` calls is timed.

    The gaps come from a random generator of its own; the script's generators are not touched.
    """

    __slots__ = ("_draw", "asking_ns", "calls", "clock", "next", "timed", "timed_ns", "widest_gap")

    def __init__(self, every: int, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self.calls = 0
        self.widest_gap = 2 * every - 1
        """The largest number of calls between two that are timed."""
        self.clock = clock
        self.timed = 0
        """The number of calls that were timed."""
        self.timed_ns = 0
        """The nanoseconds that the timed calls took in all."""
        self.next = 2
        """The number of the call that is timed next."""
        self.asking_ns = 0
        """The nanoseconds that reading the clock took the last time."""
        self._draw = 1

    def begin(self) -> int | None:
        """Counts a call. Returns the time to pass to `end`, or None if this call is not timed."""
        self.calls += 1
        return None if self.calls < self.next else self.start()

    def start(self) -> int:
        """Begins to time a call; returns the time for `end`.

        Frequent callers count `calls` themselves and skip `begin`.
        """
        self._draw = (self._draw * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        self.next = self.calls + 1 + (self._draw >> 8) % self.widest_gap
        before = self.clock()
        begin = self.clock()
        self.asking_ns = begin - before  # cost of reading the clock with the caches as they are
        return begin

    def end(self, begin: int | None) -> int:
        """Ends a call. `begin`: what `begin` returned. Returns the time now, or 0 if this call is not timed."""
        if begin is None:
            return 0
        now = self.clock()
        self.timed_ns += now - begin - self.asking_ns
        self.timed += 1
        return now

    @property
    def total_ns(self) -> int:
        """The estimated nanoseconds of all calls."""
        return total_ns(self.timed_ns, self.timed, self.calls)


def total_ns(timed_ns: int, timed: int, calls: int) -> int:
    """Scales the nanoseconds of the timed calls up to all calls."""
    return max(0, timed_ns) * calls // max(1, timed)


class _State:
    """The attributes that `bare_hook` reads: about as many as the hooks of a plain step do on average."""

    def __init__(self) -> None:
        self.inside = self.running = False
        self.begin = self.end = 0
        self.clock = time.perf_counter_ns
        self.itself = weakref.ref(self)


def bare_hook() -> Callable[[], Any]:
    """A function that takes about as long as an average hook of a plain step; each hook makes two events."""
    original: Callable[..., Any] = bool
    state = _State()

    def is_compiling() -> bool:
        return False

    def hook(*args: Any, **kwargs: Any) -> Any:
        found = state.itself()
        if is_compiling() or found is None or found.inside:
            return original(*args, **kwargs)
        # In no variable: a frame that is its own local variable lives on, with all frames below it.
        if sys._getframe().f_locals["found"] is not state or state.running:
            return original(*args, **kwargs)
        state.begin = state.clock()
        state.inside = True
        try:
            return original(*args, **kwargs)
        finally:
            state.inside = False
            state.end = state.clock()

    return hook
