"""What something takes that is done over and over, from a sample of it.

Which ones are timed must have nothing to do with the script's loop: the figure would be that of its epochs' first
steps, or leave them out. And it is processor time that is taken: where a process of a loader is given the processor
instead, that is a hundred times what a hook takes, and would have happened without us.
"""

from __future__ import annotations

from collections.abc import Callable

from ddlprof.collect.process.real_time import time


class SampledCost:
    """The cost of what lies between `begin` and `end`: one in `every` is timed, on average.

    The gaps are those of a generator of our own, never of the script's.
    """

    __slots__ = ("_clock", "_clock_ns", "_ns", "_state", "_timed", "_widest_gap", "calls", "next")

    def __init__(self, every: int, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self.calls = 0
        self._widest_gap = 2 * every - 1
        self._clock = clock
        self._clock_ns = 0
        self._ns = self._timed = 0
        self._state = 1
        self.next = 2
        """The number of the call that is timed."""

    def begin(self) -> int:
        """The time to give to `end`; 0 where this one is not timed."""
        self.calls += 1
        return 0 if self.calls < self.next else self.start()

    def start(self) -> int:
        """The time for `end`, as this one is timed. What is called often does without `begin`: it counts."""
        self._state = (self._state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        self.next = self.calls + 1 + (self._state >> 8) % self._widest_gap
        before = self._clock()
        begin = self._clock()
        self._clock_ns = begin - before  # what asking takes, with the caches as they are now
        return begin

    def end(self, begin: int) -> None:
        """`begin`: what `begin` returned; where that is 0, this need not be called."""
        if begin:
            self._ns += self._clock() - begin - self._clock_ns
            self._timed += 1

    @property
    def is_known(self) -> bool:
        """Whether one was timed already."""
        return self._timed > 0

    @property
    def total_ns(self) -> int:
        """What all of them took."""
        return max(0, self._ns) * self.calls // max(1, self._timed)
