"""What of `compute` is forward, backward and optimizer.

What lies between two of them goes where one expects it of a training loop: the loss to the forward, unscaling and
clipping to the optimizer; after a backward or an update, what comes before another forward to that one.
"""

from __future__ import annotations

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
        """So long it was computing."""
        self._computed[self._now] += duration

    def book_as(self, part: int, duration: int) -> None:
        """Computing that is of this part, whatever is going on: a teacher's forward, gradients that are zeroed."""
        self._computed[part] += duration

    def book_idle(self, duration: int) -> None:
        """So much of what was booked last was no computing, if `take` says so."""
        self._idle[self._now] += duration
        self._unclear |= self._idle[self._now] > self._computed[self._now]

    def cannot_tell(self) -> None:
        """This step has computing that may be of any part."""
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
