"""Forward, backward and optimizer: the parts of computing."""

from __future__ import annotations

from ddlprof.collect.steps.loop import Gap
from ddlprof.collect.steps.row import BACKWARD, FORWARD, OPTIMIZER, ComputeParts
from ddlprof.model.events import Kind
from tests.unit.collect.conftest import MS, Thread, ms, parts_ms


def test_micro_batches_add_up(thread: Thread) -> None:
    for _ in range(2):
        thread.batch(5)
        thread.spend(1)
        thread.forward(20)
        thread.backward(30)
        thread.spend(2)
    thread.update(10)
    assert parts_ms(thread.rows[0]) == [40 + 2 + 1, 60, 12]  # the second batch is got between backward and forward


def test_other_classes_are_of_no_part(thread: Thread) -> None:
    for _ in range(2):
        thread.forward(20)
        with thread.during(Kind.H2D_BEGIN, Kind.H2D_END):
            thread.spend(4)
        with thread.during(Kind.BACKWARD_BEGIN, Kind.BACKWARD_END):
            thread.spend(30)
            with thread.during(Kind.COMM_BEGIN, Kind.COMM_END, end_with=(False,)):
                thread.spend(8)
        thread.batch(5)
        with thread.updating():
            thread.spend(10)
            with thread.during(Kind.COMM_BEGIN, Kind.COMM_END, end_with=(False,)):
                thread.spend(1)
    assert parts_ms(thread.rows[1]) == [20, 30, 10]


def test_a_closure_is_what_it_does(thread: Thread) -> None:
    with thread.updating():
        for _ in range(3):
            thread.spend(1)
            thread.forward(20)
            thread.backward(30)
        thread.spend(2)
    assert parts_ms(thread.rows[0]) == [60, 90, 5]


def test_a_teacher_computes_forward(thread: Thread) -> None:
    for _ in range(2):
        thread.batch(5)
        thread.forward(7, grad=False)
        thread.forward(20)
        thread.backward(30)
        thread.update(10)
    assert parts_ms(thread.rows[1]) == [27, 30, 10]


def test_a_pause_is_of_no_part(thread: Thread) -> None:
    """Of the 20 ms before the backward, and before the update, operators run for 5."""
    for _ in range(2):
        thread.forward(20)
        for place, then, duration in (((4, 5, 1), thread.backward, 30), ((6, 7, 2), thread.update, 10)):
            thread.spend(20)
            thread.emit(Kind.GAP, Gap(place, 20 * MS, (0, b""), (20 * MS, b""), [(0, 5 * MS)]))
            then(duration)
    row = thread.rows[1]
    assert parts_ms(row) == [25, 30, 15]
    assert ms(row) == {"compute": 70, "data": None, "fetch": None, "prep": None, "other": 30}


def test_more_idle_than_computed_cannot_be() -> None:
    parts = ComputeParts()
    for part in (FORWARD, BACKWARD, OPTIMIZER):
        parts.begin(part)
        parts.book(10)
        parts.end(part)
    parts.book(4)
    parts.book_idle(5)
    assert parts.take(without_idle=True) is None
    assert parts.take(without_idle=False) is None  # nothing was seen since
