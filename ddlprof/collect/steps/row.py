"""The record of a step from its sums, and what of its `compute` is forward, backward and optimizer.

What was not measured is None, and its time is in `other`. What lies between two parts of `compute` goes where one
expects it of a training loop: the loss to the forward, unscaling and clipping to the optimizer; after a backward or an
update, what comes before another forward to that one.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from ddlprof.collect.steps.gaps import LEAST_IDLE_SHARE
from ddlprof.collect.steps.sums import Sums
from ddlprof.model.records import StepRow

FORWARD, BACKWARD, OPTIMIZER = range(3)
_NEXT = 3
"""What is computed now is of the part that begins next."""


class ComputeParts:
    """Is told what begins and ends, and each slice of computing. `take` gives the parts of the step that has ended."""

    def __init__(self) -> None:
        self._now = _NEXT
        self._in_backward = self._in_optimizer = False
        self._clear()

    def _clear(self) -> None:
        self._computed = [0, 0, 0, 0]
        self._idle = [0, 0, 0, 0]
        self._seen: set[int] = set()
        self._unclear = False

    def begin(self, part: int) -> None:
        """A forward, a backward or an update begins. In a backward, a forward computes again what was not kept."""
        if part == BACKWARD:
            self._in_backward = True
        elif self._in_backward:
            self._unclear |= part == OPTIMIZER
            return
        elif part == OPTIMIZER:
            self._in_optimizer = True
        self._seen.add(part)
        self._give_next_to(part)
        self._now = part

    def end(self, part: int) -> None:
        """A backward or an update ends; a forward goes on until something else begins."""
        if part == BACKWARD:
            self._in_backward = False
        elif self._in_backward:
            return
        else:
            self._in_optimizer = False
        self._now = OPTIMIZER if self._in_optimizer else _NEXT

    def book(self, duration: int) -> None:
        """Books computing."""
        self._computed[self._now] += duration

    def book_as(self, part: int, duration: int) -> None:
        """Computing that is of this part, whatever is going on: a teacher's forward, gradients that are zeroed."""
        self._computed[part] += duration

    def book_idle(self, duration: int) -> None:
        """Notes how much of what was booked last was no computing; `take` decides whether that counts."""
        self._idle[self._now] += duration
        self._unclear |= self._idle[self._now] > self._computed[self._now]

    def cannot_tell(self) -> None:
        """Notes that this step has computing that may be of any part."""
        self._unclear = True

    def take(self, without_idle: bool) -> tuple[int, int, int] | None:
        """Forward, backward and optimizer, which add up to what was booked; None where they cannot be told."""
        self._give_next_to(OPTIMIZER)
        computed, idle = self._computed, self._idle
        told = len(self._seen) == 3 and not self._unclear
        self._clear()
        if not told:
            return None
        if not without_idle:
            return computed[FORWARD], computed[BACKWARD], computed[OPTIMIZER]
        forward, backward, optimizer = (computed[part] - idle[part] for part in (FORWARD, BACKWARD, OPTIMIZER))
        return forward, backward, optimizer

    def _give_next_to(self, part: int) -> None:
        computed, idle = self._computed, self._idle
        computed[part] += computed[_NEXT]
        idle[part] += idle[_NEXT]
        computed[_NEXT] = idle[_NEXT] = 0


class Span(NamedTuple):
    """The number of a step, and when it was."""

    number: int
    start_ns: int
    step_ns: int


def make_row(
    span: Span, sums: Sums, parts: ComputeParts, unmeasured: Set[str], peak_memory_bytes: int | None
) -> StepRow:
    """`parts` are taken: they begin anew. `unmeasured`: classes whose hooks are not installed, or saw nothing."""
    step_ns = span.step_ns
    data = None if "data" in unmeasured else sums.data
    h2d = None if "h2d" in unmeasured else sums.h2d
    comm = None if "comm" in unmeasured or sums.unseen or sums.unawaited else sums.comm
    without_idle = sums.idle >= LEAST_IDLE_SHARE * step_ns
    compute = None if "compute" in unmeasured else sums.compute - (sums.idle if without_idle else 0)
    taken = parts.take(without_idle)
    forward, backward, optimizer = taken if taken is not None and compute is not None else (None, None, None)
    split = data is not None and (sums.split_seen or data == 0)
    # A wait in which a step ended counts in the next.
    fetch = min(int(sums.data_fetch), sums.data) if split else None
    other = step_ns - (compute or 0) - (data or 0) - (h2d or 0) - (comm or 0)
    return StepRow(
        step=span.number,
        start_ns=span.start_ns,
        step_ns=step_ns,
        compute_ns=compute,
        compute_forward_ns=forward,
        compute_backward_ns=backward,
        compute_optimizer_ns=optimizer,
        data_ns=data,
        data_fetch_ns=fetch,
        data_prep_ns=min(int(sums.data_prep), sums.data - (fetch or 0)) if split else None,
        h2d_ns=h2d,
        comm_ns=comm,
        other_ns=other,
        rollout_ns=min(sums.rollout, other),
        microbatches=sums.microbatches,
        samples=sums.samples or sums.forward_samples or None,
        flags=int(sums.flags),
        peak_memory_bytes=peak_memory_bytes,
        device_lag_ns=sums.device_lag_ns,
    )
