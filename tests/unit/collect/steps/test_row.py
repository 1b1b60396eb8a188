"""Forward, backward and optimizer: the parts of computing."""

from __future__ import annotations

import pytest

from ddlprof.collect.steps.loop import Gap
from ddlprof.collect.steps.row import BACKWARD, FORWARD, OPTIMIZER, ComputeParts
from ddlprof.model.events import Kind
from tests.unit.collect.conftest import MS, Thread, ms, parts_ms

UNKNOWN = [None, None, None]


def test_the_loss_is_of_the_forward_and_clipping_of_the_optimizer(thread: Thread) -> None:
    thread.batch(5)
    thread.forward(20)
    thread.spend(3)
    thread.backward(30)
    thread.spend(4)
    thread.update(10)
    row = thread.rows[0]
    assert parts_ms(row) == [23, 30, 14]
    assert ms(row)["compute"] == 67


@pytest.mark.parametrize("when", ["before the forward", "before the backward", "before the update"])
def test_zeroing_gradients_is_of_the_optimizer(when: str, thread: Thread) -> None:
    for _ in range(2):
        for name, duration in (("forward", 20), ("backward", 30), ("update", 10)):
            if when.endswith(name):
                with thread.during(Kind.ZERO_GRAD_BEGIN, Kind.ZERO_GRAD_END):
                    thread.spend(7)
            getattr(thread, name)(duration)
    assert parts_ms(thread.rows[1]) == [20, 30, 17]
    assert ms(thread.rows[1])["compute"] == 67


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


def test_a_step_of_two_optimizers(thread: Thread) -> None:
    for _ in range(12):
        for optimizer, size in ((0, 10), (1, 1000)):
            thread.forward(20)
            thread.backward(30)
            thread.update(10, optimizer, size=size)
            thread.spend(1)
    assert parts_ms(thread.rows[-1]) == [40 + 1, 60, 20]


def test_a_teacher_computes_forward(thread: Thread) -> None:
    for _ in range(2):
        thread.batch(5)
        thread.forward(7, grad=False)
        thread.forward(20)
        thread.backward(30)
        thread.update(10)
    assert parts_ms(thread.rows[1]) == [27, 30, 10]


def test_a_forward_inside_a_backward_computes_again_what_was_not_kept(thread: Thread) -> None:
    thread.forward(20)
    with thread.during(Kind.BACKWARD_BEGIN, Kind.BACKWARD_END):
        thread.forward(15)
        thread.spend(30)
    thread.update(10)
    assert parts_ms(thread.rows[0]) == [20, 45, 10]


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


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("forward", [True, False])
def test_what_was_computed_of_the_loss_before_any_forward_is_forward(
    forward: bool, batch: bool, thread: Thread
) -> None:
    """Of the 20 ms before, operators that autograd recorded run for 5."""
    for _ in range(2):
        if batch:
            thread.batch(10)
        opened_by, then = Kind.DATA_END if batch else Kind.OPTIMIZER_END, Kind.FORWARD_BEGIN
        place = int(opened_by), int(then if forward else Kind.BACKWARD_BEGIN), 1
        thread.spend(20)
        thread.emit(Kind.GAP, Gap(place, 20 * MS, (0, b""), (20 * MS, b""), [(15 * MS, 20 * MS)]))
        if forward:
            thread.forward(7)
        thread.backward(30)
        thread.update(10)
    row = thread.rows[1]
    assert parts_ms(row) == [5 + 7 * forward, 30, 10]
    assert (row.compute_ns, row.other_ns) == ((45 + 7 * forward) * MS, 15 * MS)


def test_a_gap_behind_a_forward_without_gradients_is_of_no_loss(thread: Thread) -> None:
    for _ in range(2):
        thread.forward(7)
        thread.backward(30)
        thread.update(10)
        thread.forward(5, grad=False)
        thread.spend(20)
        place = int(Kind.FORWARD_END), int(Kind.FORWARD_BEGIN), 1
        thread.emit(Kind.GAP, Gap(place, 20 * MS, (0, b""), (20 * MS, b""), [(0, 20 * MS)]))
    thread.forward(7)
    thread.backward(30)
    thread.update(10)
    assert parts_ms(thread.rows[1]) == [7 + 5, 30, 10]  # a teacher's
    assert thread.rows[1].other_ns == 20 * MS


@pytest.mark.parametrize("missing", ["forward", "backward", "update"])
def test_not_told_where_one_of_them_is_not_seen(thread: Thread, missing: str) -> None:
    for _ in range(3):
        thread.batch(5)
        for name, duration in (("forward", 20), ("backward", 30), ("update", 10)):
            if name == missing:
                thread.spend(duration)
            else:
                getattr(thread, name)(duration)
        if missing == "update":
            thread.emit(Kind.ITERATION, 0)
    thread.assembler.boundaries.rounds = None
    rows = thread.rows
    assert all(parts_ms(row) == UNKNOWN for row in rows)
    assert rows or missing == "update"


def test_not_told_of_a_replayed_graph_or_a_compiled_step(thread: Thread) -> None:
    for _ in range(2):
        thread.forward(0)
        with thread.during(Kind.BACKWARD_BEGIN, Kind.BACKWARD_END, begin_with=(True,)):
            thread.spend(60)
        thread.update(0)
    assert parts_ms(thread.rows[1]) == UNKNOWN
    thread.step()
    assert parts_ms(thread.rows[2]) == [20, 30, 10]  # what cannot be told of a step is no matter for the next


def test_not_told_where_an_optimizer_steps_in_a_backward(thread: Thread) -> None:
    thread.forward(20)
    with thread.during(Kind.BACKWARD_BEGIN, Kind.BACKWARD_END):
        thread.spend(30)
        thread.update(10)
    thread.update(10, optimizer=1)
    assert [parts_ms(row) for row in thread.rows] == [UNKNOWN]


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
