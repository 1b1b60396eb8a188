"""What the recorder adds to the hooks' events from the order in which they come: rounds of the loop, and gaps.

A gap is the time between forward and update in which no hook is: the loss, clipping, but also whatever else the loop
does there. At both ends of a gap the clocks of the training thread are read, and now and then torch says when its
operators ran in it, so that a sleep or an environment's step is not taken for computing. In the training thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ddlprof.collect.process.thread_clock import Reading, ThreadClock
from ddlprof.model.events import Kind, Round

Extra = tuple[int, Any]
"""Kind and payload of an event."""

SMALLEST_GAP_NS = 250_000
"""Shorter ones are computing: a loss function, and the interpreter between two calls. Gaps in which the thread computes
longer are looked into ..."""
HUGE_GAP_NS = 50_000_000
"""... if it is not as long as that: each operator is kept in memory until the gap ends."""
LOOK_UPDATES = 4
LOOK_AGAIN_AFTER = 500
MOST_LOOKS = 64
"""The most in one go: a loop may have thousands of gaps in a step."""
_LAST_ORDINAL = 16
"""Gaps of a step beyond it are taken for alike."""

_DATA_BEGIN, _DATA_END = int(Kind.DATA_BEGIN), int(Kind.DATA_END)  # an enumeration's attribute is slow to look up
_FORWARD_BEGIN, _FORWARD_END = int(Kind.FORWARD_BEGIN), int(Kind.FORWARD_END)
_BACKWARD_BEGIN, _BACKWARD_END = int(Kind.BACKWARD_BEGIN), int(Kind.BACKWARD_END)
_OPTIMIZER_BEGIN, _OPTIMIZER_END = int(Kind.OPTIMIZER_BEGIN), int(Kind.OPTIMIZER_END)
_ZERO_GRAD_BEGIN, _ZERO_GRAD_END = int(Kind.ZERO_GRAD_BEGIN), int(Kind.ZERO_GRAD_END)
_TRACED, _GAP, _ROUND = int(Kind.TRACED), int(Kind.GAP), int(Kind.ROUND)

BEGINS = frozenset((_DATA_BEGIN, _FORWARD_BEGIN, _BACKWARD_BEGIN, _OPTIMIZER_BEGIN, _ZERO_GRAD_BEGIN))
"""Kinds that end a gap or begin a round."""
ENDS = frozenset((_DATA_END, _FORWARD_END, _BACKWARD_END, _OPTIMIZER_END, _ZERO_GRAD_END))
"""Kinds after which a gap may begin."""
IDLE = frozenset((_DATA_BEGIN, _DATA_END, _ZERO_GRAD_BEGIN, _ZERO_GRAD_END))
"""Of these, those that mean nothing while the watch is `idle`: it need not be called."""


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


class LoopWatch:
    """`before` is called ahead of each event of `BEGINS`, `after` after each of `ENDS`; in the training thread."""

    def __init__(self, make_clock: Callable[[], ThreadClock], wall: Callable[[], int]) -> None:
        self.gaps = True
        """Whether gaps are looked at: on an accelerator's timeline they say nothing."""
        self.log = OperatorLog()
        self._make_clock = make_clock
        self._clock: ThreadClock | None = None
        self._wall = wall
        self.idle = True
        """Between two steps: no gap is open, and no round is due."""
        self._in_step = self._in_forward = self._in_backward = False
        self._optimizers: set[Any] = set()
        self._loader_due = self._forward_due = False
        self._open: tuple[int, int, Reading] | None = None
        self._interrupted: int | None = None
        """What opened the gap in which a `zero_grad` is under way."""
        self._ordinal = 0
        self._blocked_at: set[tuple[int, int]] = set()
        """Gaps, by the event before them and their number in the step, in which the thread did not just compute."""
        self._looking = False
        self._updates = self._look_until = self._look_next = self._looks_left = 0

    def before(self, kind: int, a: Any) -> list[Extra]:
        """What is to be recorded before an event that begins something; a round comes last."""
        extras: list[Extra] = []
        if kind == _ZERO_GRAD_BEGIN:
            self._interrupted = None if self._open is None else self._open[0]
        if self._open is not None:
            wall = self._wall() - self._open[1]
            if wall < SMALLEST_GAP_NS and not self._looking:
                self._open = None
            else:
                extras = self._close(kind, wall)
        if kind == _DATA_BEGIN and self._loader_due:
            self._loader_due = self._forward_due = False
            extras.append((_ROUND, Round.LOADER))
        elif kind == _FORWARD_BEGIN and a and self._forward_due:
            self._forward_due = False
            extras.append((_ROUND, Round.FORWARD))
        if not self._optimizers and extras and extras[-1][0] == _ROUND:
            self._end_step()
        if (kind == _FORWARD_BEGIN and a) or kind == _BACKWARD_BEGIN:
            self._in_step, self.idle = True, False
        if kind == _FORWARD_BEGIN:
            self._in_forward = True  # a whole step may be in it, if it is compiled
        elif kind == _BACKWARD_BEGIN:
            self._in_backward = True
        return extras

    def after(self, kind: int, a: Any = None) -> None:
        """Runs after an event that ends something a gap may begin; one that was interrupted goes on."""
        if kind == _ZERO_GRAD_END:
            if self._interrupted is not None and self._open is None:
                self._begin_gap(self._interrupted)
            return
        if kind == _OPTIMIZER_END:
            self._loader_due = self._forward_due = False
            self._optimizers.add(a)
            self._end_step()
            if self.gaps and len(self._optimizers) > 1:
                self._begin_gap(kind)  # another one may follow in the same step
                self.idle = False
        else:
            if kind == _BACKWARD_END:
                self._loader_due = self._forward_due = True
                self._in_backward = self.idle = False
            elif kind == _FORWARD_END:
                self._in_forward = False
            inside = self._in_forward or self._in_backward
            if self._in_step and not inside and self.gaps and self._open is None:
                self._begin_gap(kind)

    def _end_step(self) -> None:
        """Ends the step after an update, or a round that is taken for one."""
        self._in_step = self._in_forward = False
        self._open = self._interrupted = None
        if self._looking:
            self.close_log()
        self._ordinal = 0
        self._updates += 1
        self.idle = not (self._loader_due or self._forward_due)

    def close_log(self) -> Any:
        """Ends a look into a gap; to be called, too, when the script begins to use a profiler of its own."""
        if not self._looking:
            return None
        self._looking = False
        return self.log.stop()

    def _begin_gap(self, kind: int) -> None:
        try:
            if self._clock is None:
                self._clock = self._make_clock()
            if self._ordinal < _LAST_ORDINAL:
                self._ordinal += 1
            reading = self._clock.read((kind, self._ordinal) in self._blocked_at)
        except OSError:
            self.gaps = False
            return
        if self._looks_left and self._updates < self._look_until and kind != _OPTIMIZER_END:
            self._looks_left -= 1
            self._looking = self.log.start()
        self._open = kind, self._wall(), reading

    def _close(self, kind: int, wall: int) -> list[Extra]:
        """Ends a gap that took so long, or was looked into."""
        assert self._open is not None
        assert self._clock is not None
        opened_by, _, reading = self._open
        self._open = None
        try:
            end = self._clock.read(bool(reading[1]))
        except OSError:
            self.gaps = False
            self.close_log()
            return []
        looked = self._looking
        operators = self.close_log()
        computed = SMALLEST_GAP_NS < end[0] - reading[0] < HUGE_GAP_NS
        if not looked and computed and self._updates >= self._look_next and opened_by != _OPTIMIZER_END:
            self._look_soon()
        if not reading[1] and wall - (end[0] - reading[0]) >= SMALLEST_GAP_NS:
            self._blocked_at.add((opened_by, self._ordinal))  # or without a processor: the next time tells
        gap = Gap((opened_by, kind, self._ordinal), wall, reading, end, operators)
        return [(_TRACED, None), (_GAP, gap)] if looked else [(_GAP, gap)]

    def _look_soon(self) -> None:
        """Looks into the gaps of the next steps."""
        self._look_until = self._updates + LOOK_UPDATES
        self._look_next = self._updates + LOOK_AGAIN_AFTER
        self._looks_left = MOST_LOOKS
