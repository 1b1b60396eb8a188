"""Tells how much of a gap between forward and update was not computing: the thread was blocked, or busy outside torch.

In a few gaps of each place, torch's operators are recorded, which gives their share of the thread's processor time.
That share is assumed for the other gaps of the place, and the rest of a gap is the loop's own work. In gaps that were
never inspected, because the thread computed little, only the time in which the thread was blocked is not computing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ddlprof.collect.process.clocks import ThreadClock
from ddlprof.collect.python_core import SMALLEST_GAP_NS
from ddlprof.collect.steps.loop import Gap
from ddlprof.model.events import Kind

PAUSE_NS = 100_000
"""A pause this short between two operators belongs to them: it is the interpreter on its way from one to the next."""
LEAST_IDLE_NS = SMALLEST_GAP_NS
"""The least idle time in a gap; less stays computing: calls without operators (the way into `step`), clock jitter."""
LEAST_IDLE_SHARE = 0.03
"""The least idle share of a step."""
COMPUTING_SHARE = 0.8
"""If operators fill this share of a place's gaps, all of a gap there is computing: operators may take longer at times.
"""
_BACKWARD_BEGIN = int(Kind.BACKWARD_BEGIN)
UNUSUAL_FACTOR = 2
"""The exception to `COMPUTING_SHARE`: a gap longer than usual by this factor."""
_KEPT = 9
"""The number of latest inspected gaps of a place whose median is taken."""


class _InspectedGaps:
    """The inspected gaps of one place: wall time, processor time and time in operators, in nanoseconds."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, int, int]] = deque(maxlen=_KEPT)

    def add(self, wall_ns: int, cpu_ns: int, busy_ns: int) -> None:
        self._looks.append((max(1, wall_ns), max(1, cpu_ns), busy_ns))  # a clock may be coarse

    @property
    def share(self) -> float:
        """The share of their wall time in which operators run."""
        return _middle(busy / wall for wall, _, busy in self._looks)

    def computing_ns(self, wall_ns: int, cpu_ns: int) -> float:
        """The computing time, in nanoseconds, of a gap with this wall time and processor time.

        Operators take longer at times, and the thread may wait in one for its helpers, so it is their share of the
        processor time that is taken to be the same.
        """
        wall = _middle(wall for wall, _, _ in self._looks)
        if self.share >= COMPUTING_SHARE:
            return wall if wall_ns > UNUSUAL_FACTOR * wall else wall_ns
        return min(wall_ns, cpu_ns * _middle(busy / cpu for _, cpu, busy in self._looks))


def _middle(values: Iterable[float]) -> float:
    """The median of a few values; not by `statistics`, because a script may have a module of that name."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


class Gaps:
    """`look` learns from inspected gaps, `idle_ns` tells the time without computing. Uses no torch and no files."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int, int], _InspectedGaps] = {}

    def look(self, gap: Gap) -> None:
        """Learns how long operators run in gaps of this place, if they were recorded in this gap."""
        operators = gap.operators() if callable(gap.operators) else gap.operators
        if operators is not None:
            busy = busy_ns(operators, gap.wall_ns)
            self._places.setdefault(gap.place, _InspectedGaps()).add(gap.wall_ns, gap.end[0] - gap.begin[0], busy)

    def idle_ns(self, gap: Gap, claimed_ns: int) -> int:
        """The nanoseconds of the gap that were not computing, without `claimed_ns` of communication or copies.

        Waiting for a processor lengthens computing and everything else alike.
        """
        place = self._places.get(gap.place)
        cpu, awake = _cpu_and_awake_ns(gap)
        computing = cpu if place is None else place.computing_ns(awake, cpu)
        idle = round(max(0.0, awake - computing) * gap.wall_ns / awake) - claimed_ns
        return idle if idle >= LEAST_IDLE_NS else 0

    def early_ns(self, gap: Gap) -> int:
        """The nanoseconds of a gap before a step's first forward in which the loss was computed already.

        While gaps of this place were never inspected, only what a backward follows counts.
        """
        place = self._places.get(gap.place)
        cpu, awake = _cpu_and_awake_ns(gap)
        if place is None:
            return min(cpu, gap.wall_ns) if gap.place[1] == _BACKWARD_BEGIN else 0
        computing = round(place.computing_ns(awake, cpu) * gap.wall_ns / awake)
        # Where the thread waits for a processor, operators take longer than its processor time, and all else does too.
        most = gap.wall_ns if place.share >= COMPUTING_SHARE else round(place.share * gap.wall_ns)
        return min(most, computing)


def _cpu_and_awake_ns(gap: Gap) -> tuple[int, int]:
    """How long the thread ran in a gap, and how long it ran or waited for a processor, in nanoseconds."""
    cpu = gap.end[0] - gap.begin[0]
    if not gap.begin[1]:  # where it is not known whether it was blocked or waited for a processor, it waited
        return cpu, max(1, min(cpu, gap.wall_ns))
    return cpu, max(1, gap.wall_ns - ThreadClock.waited_ns(gap.begin, gap.end))


def busy_ns(operators: Sequence[tuple[int, int]], wall_ns: int) -> int:
    """Nanoseconds in operators, given as `(begin, end)` in order of begin; short pauses between two are included."""
    total, reach = 0, 0
    for begin, end in operators:
        total += max(0, end - max(begin, reach))
        if reach < begin < reach + PAUSE_NS:
            total += begin - reach
        reach = max(reach, end)
    if operators and reach < wall_ns < reach + PAUSE_NS:
        total += wall_ns - reach
    return min(total, wall_ns)
