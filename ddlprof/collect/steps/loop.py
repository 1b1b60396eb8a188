"""What the recorder adds to the hooks' events from the order in which they come: rounds of the loop, and gaps.

A gap is the time between forward and update in which no hooked call runs: the loss, clipping, but also whatever else
the loop does there. At both ends of a gap the clocks of the training thread are read, and now and then torch's profiler
tells when operators ran in it, so that a sleep or an environment's step is not taken for computing. All this is done in
the training thread only.

`ddlprof.collect.core` has the work done at every event; this module has the work for gaps that are longer than most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ddlprof.collect import core
from ddlprof.collect.process.clocks import Reading, ThreadClock
from ddlprof.collect.python_core import SMALLEST_GAP_NS, Extra
from ddlprof.model.events import Kind

HUGE_GAP_NS = 50_000_000
"""Only gaps in which the thread computes longer than `SMALLEST_GAP_NS` and shorter than this are inspected, because
each operator is kept in memory until the gap ends."""
HUGE_EARLY_GAP_NS = 1_000_000_000
"""The same of loops whose losses are computed from what no hook has seen: a whole forward is in a gap then."""
LOOK_UPDATES = 4
LOOK_AGAIN_AFTER = 500
MOST_LOOKS = 64
"""The most gaps inspected in each such series of steps: a loop may have thousands of gaps in a step."""

_DOUBTED = 16
"""How many times the waiting time of a gap is read after one in which the thread may have been blocked."""

_OPTIMIZER_END, _TRACED, _GAP = int(Kind.OPTIMIZER_END), int(Kind.TRACED), int(Kind.GAP)
BEFORE_A_STEP = (_OPTIMIZER_END, int(Kind.DATA_END))
"""Kinds of events that open the gaps in which a loss may begin that no module computes."""


class OperatorLog:
    """Records the times of torch's operators in this thread from `start` to `stop`; this base class records nothing."""

    def start(self) -> bool:
        """Starts recording; False if that is not possible now."""
        return False

    def stop(self, recorded: bool = False) -> Any:
        """Stops recording. Returns start and end of each operator in nanoseconds since `start`, in order, or a function
        that returns them later; None if nothing was recorded. `steps.gaps.Gaps` uses the result.

        `recorded`: only from the first operator on that autograd recorded."""


class Gap(NamedTuple):
    """Payload of `Kind.GAP`: the facts from which the computing time of a gap is estimated."""

    place: tuple[int, int, int]
    """Kind of the event before it, of the event after it, and which gap of its step it is."""
    wall_ns: int
    begin: Reading
    end: Reading
    operators: Any
    """The result of `OperatorLog.stop`; None if operators were not recorded."""


if TYPE_CHECKING:
    from ddlprof.collect.python_core import LoopWatch as _Core
else:
    _Core = object


class GapLooks(_Core):
    """Inspects gaps: the work of a core's `RecorderLoop` that is not done at every event."""

    def __init__(self, make_clock: Callable[[], ThreadClock], wall: Callable[[], int]) -> None:
        super().__init__()
        self.log = OperatorLog()
        self.wall = wall
        self._new_clock = make_clock
        self._clock: ThreadClock | None = None
        self.gap = Gap
        self._doubted: dict[tuple[int, int], int] = {}
        """For gaps in which the thread may or may not be blocked: how many more times their waiting time is read."""
        self._doubts: dict[tuple[int, int], int] = {}
        """How many times such a gap was to be read when it was last in doubt."""

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

    def close_log(self, recorded: bool = False) -> Any:
        """Stops recording operators; to be called also when the script starts a profiler of its own."""
        if not self.looking:
            return None
        self.looking = False
        return self.log.stop(recorded)

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
        operators = self.close_log(self.early and opened_by in BEFORE_A_STEP)
        cpu, place = end[0] - reading[0], (opened_by, self.ordinal)
        computed = SMALLEST_GAP_NS < cpu < (HUGE_EARLY_GAP_NS if self.early else HUGE_GAP_NS)
        is_looked_into = self.early or opened_by != _OPTIMIZER_END
        if not looked and computed and self.updates >= self.look_next and is_looked_into:
            self._look_soon()
        if wall - cpu >= SMALLEST_GAP_NS and not reading[1]:
            self._doubt(place)
        elif reading[1] and wall - cpu - ThreadClock.waited_ns(reading, end) >= SMALLEST_GAP_NS:
            self._doubted.pop(place, None)  # it was blocked, and will be again
            self.blocked_at.add(place)
        gap = Gap((opened_by, kind, self.ordinal), wall, reading, end, operators)
        return [(_TRACED, None), (_GAP, gap)] if looked else [(_GAP, gap)]

    def _doubt(self, place: tuple[int, int]) -> None:
        """Has the next gaps at this place read the waiting time, which tells whether the thread was blocked or only
        waited for a processor. Each time it is in doubt again, twice as many gaps are read: not all, because a reading
        costs as much as all else that is done in a step."""
        self._doubts[place] = self._doubted[place] = 2 * self._doubts.get(place, _DOUBTED // 2)
        self.blocked_at.add(place)

    def _look_soon(self) -> None:
        """Has the gaps of the next steps inspected."""
        self.look_until = self.updates + LOOK_UPDATES
        self.look_next = self.updates + LOOK_AGAIN_AFTER
        self.looks_left = MOST_LOOKS


class RecorderLoop(GapLooks, core.LoopWatch):
    """The watch of a recorder."""
