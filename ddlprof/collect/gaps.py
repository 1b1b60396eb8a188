"""How much of a gap between forward and update was not computing: blocked, or busy outside of torch.

How long torch's operators run in a gap is known for a few gaps of each place, and taken to be the same in the others of
that place: what a gap takes beyond it is the loop's own business. Where nobody looked, as the thread computed little,
it is the time in which the thread was blocked.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from ddlprof.collect.loop import Gap
from ddlprof.collect.thread_clock import ThreadClock

SMALLEST_NS = 100_000
"""What is less stays computing: the interpreter between two operators, the jitter of clocks."""
COMPUTING_SHARE = 0.9
"""A place where operators fill this share of the gap is computing: operators take longer at times, too."""
UNUSUAL_FACTOR = 2
"""Unless a gap is so much longer than usual there."""
_KEPT = 9
"""Looks at a place whose median is taken."""


class _Place:
    """What was seen of the gaps of one place that were looked into."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, int]] = deque(maxlen=_KEPT)

    def add(self, wall_ns: int, busy_ns: int) -> None:
        self._looks.append((wall_ns, busy_ns))

    def computing_ns(self, wall_ns: int) -> float:
        """Of a gap of that length."""
        wall = float(statistics.median(wall for wall, _ in self._looks))
        busy = float(statistics.median(busy for _, busy in self._looks))
        if busy < COMPUTING_SHARE * wall:
            return busy
        return wall if wall_ns > UNUSUAL_FACTOR * wall else wall_ns


class Gaps:
    """`look` learns from the gaps that were looked into, `idle_ns` says what is no computing; no torch, no files."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int, int], _Place] = {}

    def look(self, gap: Gap) -> None:
        """Learns how long operators run in gaps of this place, if somebody looked."""
        operators = gap.operators() if callable(gap.operators) else gap.operators
        if operators is not None:
            self._places.setdefault(gap.place, _Place()).add(gap.wall_ns, busy_ns(operators, gap.wall_ns))

    def idle_ns(self, gap: Gap, claimed_ns: int) -> int:
        """Nanoseconds of the gap that are no computing, beside `claimed_ns` of communication or copies."""
        place = self._places.get(gap.place)
        if place is None:
            idle = ThreadClock.blocked_ns(gap.wall_ns, gap.begin, gap.end)
        else:
            idle = gap.wall_ns - round(place.computing_ns(gap.wall_ns))
        idle -= claimed_ns
        return idle if idle >= SMALLEST_NS else 0


def busy_ns(operators: Sequence[tuple[int, int]], wall_ns: int) -> int:
    """Time in operators, `(begin, end)` in the order of their begin; short pauses between two belong to them."""
    total, reach = 0, 0
    for begin, end in operators:
        total += max(0, end - max(begin, reach))
        if reach < begin < reach + SMALLEST_NS:
            total += begin - reach
        reach = max(reach, end)
    if operators and reach < wall_ns < reach + SMALLEST_NS:
        total += wall_ns - reach
    return min(total, wall_ns)
