"""Of several states that hold at once, the first in the order has the time."""

from __future__ import annotations

from ddlprof.collect.steps.states import COMM, DATA, H2D, Booking, by_state


def test_the_first_state_that_holds_has_the_time() -> None:
    booked: list[tuple[str, int]] = []

    def booking(name: str) -> Booking:
        return lambda ns: booked.append((name, ns))

    bookings = by_state([(DATA, booking("data")), (COMM, booking("comm")), (H2D, booking("h2d"))], booking("none"))
    for ns, state in enumerate((0, COMM, H2D, COMM + H2D, DATA + COMM, DATA + COMM + H2D)):
        bookings[state](ns)
    assert booked == [("none", 0), ("comm", 1), ("h2d", 2), ("comm", 3), ("data", 4), ("data", 5)]
