"""How much of a gap between forward and update was not computing: blocked, or busy outside of torch.

How much of the thread's processor time torch's operators take is known for a few gaps of each place, and taken to be
the same in the others of that place: what a gap takes beyond it is the loop's own business. Where nobody looked, as the
thread computed little, it is the time in which the thread was blocked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ddlprof.collect.process.clocks import ThreadClock
from ddlprof.collect.python_core import SMALLEST_GAP_NS
from ddlprof.collect.steps.loop import Gap

PAUSE_NS = 100_000
"""A pause this short between two operators belongs to them: it is the interpreter on its way from one to the next."""
LEAST_IDLE_NS = SMALLEST_GAP_NS
"""The least idle time in a gap; less stays computing: calls without operators (the way into `step`), clock jitter."""
LEAST_IDLE_SHARE = 0.03
"""The least idle share of a step."""
COMPUTING_SHARE = 0.8
"""A place where operators fill this share of the gap is computing: operators take longer at times, too."""
UNUSUAL_FACTOR = 2
"""Unless a gap is so much longer than usual there."""
_KEPT = 9
"""Looks at a place whose median is taken."""


class _Place:
    """What was seen of the gaps of one place that were looked into: wall time, processor time, time in operators."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, int, int]] = deque(maxlen=_KEPT)

    def add(self, wall_ns: int, cpu_ns: int, busy_ns: int) -> None:
        self._looks.append((max(1, wall_ns), max(1, cpu_ns), busy_ns))  # a clock may be coarse

    def computing_ns(self, wall_ns: int, cpu_ns: int) -> float:
        """The computing time of a gap that took so long.

        Operators take longer at times, and the thread may wait in one for its helpers, so it is their share of the
        processor time that is taken to be the same.
        """
        wall = _middle(wall for wall, _, _ in self._looks)
        if _middle(busy / wall for wall, _, busy in self._looks) >= COMPUTING_SHARE:
            return wall if wall_ns > UNUSUAL_FACTOR * wall else wall_ns
        return min(wall_ns, cpu_ns * _middle(busy / cpu for _, cpu, busy in self._looks))


def _middle(values: Iterable[float]) -> float:
    """The median of a few; not by `statistics`, which a script may have a module of its own for."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


class Gaps:
    """`look` learns from the gaps that were looked into, `idle_ns` says what is no computing; no torch, no files."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int, int], _Place] = {}

    def look(self, gap: Gap) -> None:
        """Learns how long operators run in gaps of this place, if somebody looked."""
        operators = gap.operators() if callable(gap.operators) else gap.operators
        if operators is not None:
            busy = busy_ns(operators, gap.wall_ns)
            self._places.setdefault(gap.place, _Place()).add(gap.wall_ns, gap.end[0] - gap.begin[0], busy)

    def idle_ns(self, gap: Gap, claimed_ns: int) -> int:
        """The nanoseconds of the gap that are no computing, beside `claimed_ns` of communication or copies.

        Waiting for a processor lengthens computing and everything else alike.
        """
        place = self._places.get(gap.place)
        cpu = gap.end[0] - gap.begin[0]
        # Where it is not known whether the thread was blocked or waited for a processor, it waited.
        awake = max(
            1, gap.wall_ns - ThreadClock.waited_ns(gap.begin, gap.end) if gap.begin[1] else min(cpu, gap.wall_ns)
        )
        computing = cpu if place is None else place.computing_ns(awake, cpu)
        idle = round(max(0.0, awake - computing) * gap.wall_ns / awake) - claimed_ns
        return idle if idle >= LEAST_IDLE_NS else 0


def busy_ns(operators: Sequence[tuple[int, int]], wall_ns: int) -> int:
    """Time in operators, `(begin, end)` in the order of their begin; short pauses between two belong to them."""
    total, reach = 0, 0
    for begin, end in operators:
        total += max(0, end - max(begin, reach))
        if reach < begin < reach + PAUSE_NS:
            total += begin - reach
        reach = max(reach, end)
    if operators and reach < wall_ns < reach + PAUSE_NS:
        total += wall_ns - reach
    return min(total, wall_ns)
