"""What the recorder adds to the hooks' events from the order in which they come: rounds of the loop, and gaps.

A gap is the time between forward and update in which no hook is: the loss, clipping, but also whatever else the loop
does there. At both ends of a gap the clocks of the training thread are read, and now and then torch says when its
operators ran in it, so that a sleep or an environment's step is not taken for computing. In the training thread only.

What happens at every event is in `ddlprof.collect.core`; here is what is done about a gap that is longer than most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ddlprof.collect import core
from ddlprof.collect.process.clocks import Reading, ThreadClock
from ddlprof.collect.python_core import SMALLEST_GAP_NS, Extra
from ddlprof.model.events import Kind

HUGE_GAP_NS = 50_000_000
"""Gaps in which the thread computes longer than `SMALLEST_GAP_NS` are looked into, if it is not as long as that: each
operator is kept in memory until the gap ends."""
LOOK_UPDATES = 4
LOOK_AGAIN_AFTER = 500
MOST_LOOKS = 64
"""The most in one go: a loop may have thousands of gaps in a step."""

_DOUBTED = 16
"""So often a gap is read after one in which the thread may have been blocked."""

_OPTIMIZER_END, _TRACED, _GAP = int(Kind.OPTIMIZER_END), int(Kind.TRACED), int(Kind.GAP)


class OperatorLog:
    """Records the times of torch's operators in this thread between `start` and `stop`; the default: it cannot."""

    def start(self) -> bool:
        """False where it cannot be done now."""
        return False

    def stop(self) -> Any:
        """What `steps.gaps.Gaps` needs: start and end of each operator in nanoseconds since `start`, in order; or a
        callable that tells them later. None where nothing was recorded."""


class Gap(NamedTuple):
    """Payload of `Kind.GAP`: what it takes to say what went on in it."""

    place: tuple[int, int, int]
    """Kind of the event before it, of the event after it, and which gap of its step it is."""
    wall_ns: int
    begin: Reading
    end: Reading
    operators: Any
    """What an `OperatorLog` recorded; None where nobody looked."""


if TYPE_CHECKING:
    from ddlprof.collect.python_core import LoopWatch as _Core
else:
    _Core = object


class GapLooks(_Core):
    """Looks into gaps: what `LoopWatch` of a core does not do at every event."""

    def __init__(self, make_clock: Callable[[], ThreadClock], wall: Callable[[], int]) -> None:
        super().__init__()
        self.log = OperatorLog()
        self.wall = wall
        self._new_clock = make_clock
        self._clock: ThreadClock | None = None
        self.gap = Gap
        self._doubted: dict[tuple[int, int], int] = {}
        """Gaps of which it is not known whether the thread is ever blocked in them: how often they are still read."""
        self._doubts: dict[tuple[int, int], int] = {}
        """For how long it was doubted the last time."""

    def make_clock(self) -> None:
        try:
            self._clock = self._new_clock()
        except OSError:
            self.gaps = False
        else:
            self.cpu = self._clock.cpu_ns

    def read_waiting(self, kind: int) -> bytes | None:
        assert self._clock is not None
        place = kind, self.ordinal
        if place in self._doubted:
            self._doubted[place] -= 1
            if not self._doubted[place]:
                self.blocked_at.discard(place)
        try:
            return self._clock.waiting()
        except OSError:
            self.gaps = False
            return None

    def look(self) -> None:
        self.looks_left -= 1
        self.looking = self.log.start()

    def close_log(self) -> Any:
        """Ends a look into a gap; to be called, too, when the script begins to use a profiler of its own."""
        if not self.looking:
            return None
        self.looking = False
        return self.log.stop()

    def close_gap(self, kind: int, wall: int) -> list[Extra]:
        assert self.open_gap is not None
        assert self._clock is not None
        opened_by, _, reading = self.open_gap
        self.open_gap = None
        try:
            end: Reading = self._clock.cpu_ns(), self._clock.waiting() if reading[1] else b""
        except OSError:
            self.gaps = False
            self.close_log()
            return []
        looked = self.looking
        operators = self.close_log()
        cpu, place = end[0] - reading[0], (opened_by, self.ordinal)
        computed = SMALLEST_GAP_NS < cpu < HUGE_GAP_NS
        if not looked and computed and self.updates >= self.look_next and opened_by != _OPTIMIZER_END:
            self._look_soon()
        if wall - cpu >= SMALLEST_GAP_NS and not reading[1]:
            self._doubt(place)
        elif reading[1] and wall - cpu - ThreadClock.waited_ns(reading, end) >= SMALLEST_GAP_NS:
            self._doubted.pop(place, None)  # it was blocked, and will be again
            self.blocked_at.add(place)
        gap = Gap((opened_by, kind, self.ordinal), wall, reading, end, operators)
        return [(_TRACED, None), (_GAP, gap)] if looked else [(_GAP, gap)]

    def _doubt(self, place: tuple[int, int]) -> None:
        """Was the thread blocked there, or only without a processor? The next times tell, each time for twice as long:
        a reading takes as long as all else that is done in a step."""
        self._doubts[place] = self._doubted[place] = 2 * self._doubts.get(place, _DOUBTED // 2)
        self.blocked_at.add(place)

    def _look_soon(self) -> None:
        """Looks into the gaps of the next steps."""
        self.look_until = self.updates + LOOK_UPDATES
        self.look_next = self.updates + LOOK_AGAIN_AFTER
        self.looks_left = MOST_LOOKS


class LoopWatch(GapLooks, core.LoopWatch):
    """The watch of a recorder."""
