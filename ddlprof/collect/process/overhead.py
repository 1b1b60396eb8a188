"""What our hooks cost: the time that something takes which is done over and over, from a sample of it.

Which ones are timed must have nothing to do with the script's loop: the figure would be that of its epochs' first
steps, or leave them out. And it is processor time that is taken: where a process of a loader is given the processor
instead, that is a hundred times what a hook takes, and would have happened without us.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from ddlprof.base.real_time import time


class SampledCost:
    """The cost of what lies between `begin` and `end`: one in `every` is timed, on average.

    The gaps are those of a generator of our own, never of the script's.
    """

    __slots__ = ("_draw", "asking_ns", "calls", "clock", "next", "timed", "timed_ns", "widest_gap")

    def __init__(self, every: int, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self.calls = 0
        self.widest_gap = 2 * every - 1
        """The most calls between two that are timed."""
        self.clock = clock
        self.timed = 0
        """How many were timed."""
        self.timed_ns = 0
        """Nanoseconds that the timed ones took."""
        self.next = 2
        """The number of the call that is timed next."""
        self.asking_ns = 0
        """What asking the clock took the last time."""
        self._draw = 1

    def begin(self) -> int | None:
        """The time to give to `end`; None where this one is not timed."""
        self.calls += 1
        return None if self.calls < self.next else self.start()

    def start(self) -> int:
        """The time for `end`, as this one is timed. What is called often does without `begin`: it counts."""
        self._draw = (self._draw * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        self.next = self.calls + 1 + (self._draw >> 8) % self.widest_gap
        before = self.clock()
        begin = self.clock()
        self.asking_ns = begin - before  # what asking takes, with the caches as they are now
        return begin

    def end(self, begin: int | None) -> int:
        """`begin`: what `begin` returned. The time now, 0 where this one is not timed."""
        if begin is None:
            return 0
        now = self.clock()
        self.timed_ns += now - begin - self.asking_ns
        self.timed += 1
        return now

    @property
    def total_ns(self) -> int:
        """Nanoseconds that all of them took."""
        return total_ns(self.timed_ns, self.timed, self.calls)


def total_ns(timed_ns: int, timed: int, calls: int) -> int:
    """What so many calls took, of which some were timed."""
    return max(0, timed_ns) * calls // max(1, timed)


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
