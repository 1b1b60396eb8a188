"""What is known of the step under way, and where each slice of its time is booked."""

from __future__ import annotations

from ddlprof.collect.steps import states
from ddlprof.collect.steps.row import OPTIMIZER, ComputeParts
from ddlprof.collect.steps.sums import Segment, Sums


class OpenStep:
    """The sums of the step under way, and the state that the thread is in."""

    def __init__(self) -> None:
        self.bookings = self._bookings_by_state()
        self._torn = False  # whether events of it were lost
        self.forget()

    def forget(self) -> None:
        """Drops all that is known of the step."""
        self._sums = Sums()
        self.parts = ComputeParts()
        self._segment = Segment()
        self._state = 0  # the sum of the states that the thread is in now
        self._unclaimed_ns = 0  # compute booked since the last event after which a gap may begin
        self._data_slice = self._forwards_since_backward = 0
        self._saw_forward = self._in_backward = self._stepped_in_backward = False
        self._early_ns: int | None = None  # computed before the step's first forward; None if there was no such gap
        self._maybe_closure = False  # an update is under way that may call the model itself

    def _bookings_by_state(self) -> list[states.Booking]:
        """What books the time since the last event, by state; of several that hold, the first in this order has it."""
        in_order = (
            (states.COMM, self._book_comm),
            (states.H2D, self._book_h2d),
            (states.DATA, self._book_data),
            (states.CHECKPOINT, self._book_other),
            (states.NO_GRAD_FORWARD, self._book_no_grad_forward),
            (states.ZERO_GRAD, self._book_zero_grad),
            (states.TRAINING, self._book_training),
        )
        return states.by_state(in_order, self._book_between)

    def _book_comm(self, duration: int) -> None:
        self._sums.comm += duration

    def _book_h2d(self, duration: int) -> None:
        self._sums.h2d += duration

    def _book_data(self, duration: int) -> None:
        self._segment.data_ns += duration
        self._data_slice += duration

    def _book_other(self, duration: int) -> None:
        self._sums.other += duration

    def _book_no_grad_forward(self, duration: int) -> None:
        self._segment.no_grad.book(duration)

    def _book_zero_grad(self, duration: int) -> None:
        self._sums.compute += duration
        self.parts.book_as(OPTIMIZER, duration)

    def _book_training(self, duration: int) -> None:
        self._sums.compute += duration
        self.parts.book(duration)
        self._unclaimed_ns += duration

    def _book_between(self, duration: int) -> None:
        segment = self._segment
        if segment.no_grad:
            segment.no_grad.book_after(duration)
        if segment.delivered:
            segment.gap_ns += duration
        else:
            self._sums.other += duration
