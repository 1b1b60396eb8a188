"""Makes the record of a step from its sums, and divides `compute` into forward, backward and optimizer.

A class that was not measured is None, and its time is in `other`. Computing between two parts is assigned as in a usual
training loop: the loss belongs to the forward, unscaling and clipping to the optimizer, and computing that comes before
another forward belongs to that forward.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from ddlprof.collect.steps.gaps import LEAST_IDLE_SHARE
from ddlprof.collect.steps.sums import Sums
from ddlprof.model.records import StepRow

FORWARD, BACKWARD, OPTIMIZER = range(3)
_NEXT = 3
"""Stands for computing that belongs to the part that begins next."""


class ComputeParts:
    """Sums the computing of each part of a step, in nanoseconds.

    `begin` and `end` say which part is under way, `book` adds computing to it, and `take` gives the sums of the step.
    """

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
        """A forward, backward or update begins. A forward inside a backward is recomputation, part of the backward."""
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
        """Adds computing to the part that is under way."""
        self._computed[self._now] += duration

    def book_as(self, part: int, duration: int) -> None:
        """Adds computing to the given part: a teacher's forward, or the zeroing of gradients."""
        self._computed[part] += duration

    def book_idle(self, duration: int) -> None:
        """Notes that the part under way was idle for so long while computing was booked; `take` may subtract it."""
        self._idle[self._now] += duration
        self._unclear |= self._idle[self._now] > self._computed[self._now]

    def cannot_tell(self) -> None:
        """Notes that this step has computing that cannot be assigned to a part."""
        self._unclear = True

    def take(self, without_idle: bool) -> tuple[int, int, int] | None:
        """Returns forward, backward and optimizer in nanoseconds, and begins anew; None if they cannot be separated.

        `without_idle`: idle time is subtracted. Otherwise they add up to everything that was booked.
        """
        self._give_next_to(OPTIMIZER)
        computed, idle = self._computed, self._idle
        are_separable = len(self._seen) == 3 and not self._unclear
        self._clear()
        if not are_separable:
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


class StepSpan(NamedTuple):
    """The number of a step, its start since the origin, and its duration."""

    number: int
    start_ns: int
    step_ns: int


def make_row(
    span: StepSpan, sums: Sums, parts: ComputeParts, unmeasured: Set[str], peak_memory_bytes: int | None
) -> StepRow:
    """Makes the record of a step, and resets `parts`. `unmeasured`: classes that no hook has measured."""
    step_ns = span.step_ns
    data = None if "data" in unmeasured else sums.data
    h2d = None if "h2d" in unmeasured else sums.h2d
    comm = None if "comm" in unmeasured or sums.unobserved or sums.unawaited else sums.comm
    without_idle = sums.idle >= LEAST_IDLE_SHARE * step_ns
    compute = None if "compute" in unmeasured else sums.compute - (sums.idle if without_idle else 0)
    taken = parts.take(without_idle)
    forward, backward, optimizer = taken if taken is not None and compute is not None else (None, None, None)
    split = data is not None and (sums.split_seen or data == 0)
    # A wait that spans the end of a step counts in the next step, so its fetch may be longer than the data time here.
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
