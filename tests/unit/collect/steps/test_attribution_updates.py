"""Which updates end a step, and what of it is copying and communication, in made-up training loops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.collect.steps.boundaries import RETIRED_AFTER, SETTLED_AFTER
from ddlprof.model.events import Kind
from ddlprof.model.records import NEVER
from ddlprof.writing.writer import relative_us
from tests.unit.collect.conftest import LARGE, MS, SMALL, Thread, flags, ms, parts_ms

# -- optimizers ---------------------------------------------------------------------------------------------------


def test_two_optimizers_the_larger_one_marks_the_steps(thread: Thread) -> None:
    for _ in range(4):
        thread.batch(10)
        for optimizer, size in ((0, SMALL), (1, LARGE)):
            thread.forward(20)
            thread.backward(30)
            thread.update(10, optimizer, size=size)
    assert [row.compute_ns // MS for row in thread.rows] == [120] * 4
    assert thread.assembler.boundaries.anchor == 1
    assert [row.microbatches for row in thread.rows] == [1] * 4  # a pass for each is no accumulation


def test_the_smaller_optimizer_after_the_anchor_is_no_boundary(thread: Thread) -> None:
    for _ in range(3):
        thread.batch(10)
        for optimizer, size in ((0, LARGE), (1, SMALL)):
            thread.forward(20)
            thread.backward(30)
            thread.update(10, optimizer, size=size)
    assert [row.compute_ns // MS for row in thread.rows] == [60, 120, 120]


def test_of_equal_optimizers_the_last_new_one_marks_the_steps(thread: Thread) -> None:
    for _ in range(3):
        for optimizer in (0, 1):
            thread.forward(20)
            thread.backward(30)
            thread.update(10, optimizer)
    assert [row.compute_ns // MS for row in thread.rows] == [120] * 3
    assert thread.assembler.boundaries.anchor == 1


def test_a_second_phase_with_an_optimizer_of_its_own(thread: Thread) -> None:
    for phase in range(3):
        for _ in range(4):
            thread.forward(20)
            thread.update(1, optimizer=phase)
    assert [row.compute_ns // MS for row in thread.rows] == [21] * 12


def test_an_anchor_that_steps_no_more_is_retired(thread: Thread) -> None:
    for _ in range(2):
        thread.update(1, 1, size=SMALL)
        thread.update(1, 0, size=LARGE)
    for _ in range(RETIRED_AFTER + 3):
        thread.forward(20)
        thread.update(1, 1, size=SMALL)
    assert thread.assembler.boundaries.anchor == 1
    seen_in_turns = SETTLED_AFTER - 2  # alone, before the pattern was known
    assert len(thread.rows) == 2 + RETIRED_AFTER + 3 - seen_in_turns
    assert sum(row.step_ns for row in thread.rows) == thread.now - 5 * MS


def test_named_optimizer_marks_the_steps() -> None:
    thread = Thread(step_optimizer="Adam")
    for _ in range(3):
        thread.forward(20)
        thread.update(1, 0, name="SGD", size=LARGE)
        thread.update(1, 1, name="Adam", size=SMALL)
    assert [row.compute_ns // MS for row in thread.rows] == [22, 22, 22]
    assert thread.assembler.boundaries.names == {0: "SGD", 1: "Adam"}


def test_closure(thread: Thread) -> None:
    thread.batch(10)
    with thread.updating():
        for _ in range(3):
            thread.spend(1)
            thread.forward(20)
            thread.backward(30)
    (row,) = thread.rows
    assert ms(row) == {"compute": 153, "data": 10, "fetch": None, "prep": None}
    assert row.microbatches == 1  # three passes over the whole batch


@pytest.mark.parametrize("sees_forward", [True, False])
def test_what_comes_between_a_batch_and_a_closure_is_not_computing(sees_forward: bool, thread: Thread) -> None:
    for _ in range(2):
        thread.batch(10)
        thread.spend(5)
        with thread.updating():
            thread.spend(1)
            if sees_forward:
                thread.forward(20)
            else:
                thread.spend(20)
            thread.backward(30)
            thread.spend(2)
    row = thread.rows[1]
    assert ms(row) == {"compute": 53, "data": 10, "fetch": None, "prep": None, "other": 5}
    assert parts_ms(row) == ([20, 30, 3] if sees_forward else [None] * 3)


def test_an_update_without_a_closure_of_what_no_hook_has_seen_was_computed_since_the_batch(thread: Thread) -> None:
    for _ in range(2):
        thread.batch(10)
        thread.spend(5)
        thread.update(2)
    assert ms(thread.rows[1]) == {"compute": 7, "data": 10, "fetch": None, "prep": None}


def test_optimizer_in_backward(thread: Thread) -> None:
    for _ in range(3):
        thread.batch(10)
        thread.forward(20)
        with thread.during(Kind.BACKWARD_BEGIN, Kind.BACKWARD_END):
            for parameter in range(4):
                thread.spend(5)
                thread.update(1, parameter)
    assert [ms(row) for row in thread.rows] == [{"compute": 44, "data": 10, "fetch": None, "prep": None}] * 3


def test_steps_inside_backward_are_no_boundaries_beside_an_anchor(thread: Thread) -> None:
    for _ in range(3):
        thread.forward(20)
        with thread.during(Kind.BACKWARD_BEGIN, Kind.BACKWARD_END):
            thread.update(1, 1, size=SMALL)
        thread.update(1, 0, size=LARGE)
    assert sum(row.step_ns for row in thread.rows[1:]) == sum(row.compute_ns for row in thread.rows[1:])
    assert thread.rows[-1].compute_ns == 22 * MS


@pytest.mark.parametrize("skipped", [True, lambda: True])
def test_skipped_update_is_a_flagged_step(thread: Thread, skipped: Any) -> None:
    thread.forward(20)
    thread.update(1, skipped=skipped)
    thread.forward(20)
    thread.update(1, skipped=lambda: False)
    assert [flags(row) for row in thread.rows] == ["skipped", ""]


def test_compiled_function_without_a_visible_forward(thread: Thread) -> None:
    for _ in range(2):
        thread.batch(10)
        thread.spend(25)
        thread.backward(30)
        thread.update(10)
    for row in thread.rows:
        assert ms(row) == {"compute": 65, "data": 10, "fetch": None, "prep": None}
        assert row.samples == 4
    assert not thread.steps[0].saw_forward


def test_update_alone(thread: Thread) -> None:
    """Gradients by `torch.autograd.grad` or by hand, the forward in a function."""
    thread.batch(10)
    thread.spend(25)
    thread.update(10)
    assert ms(thread.rows[0]) == {"compute": 35, "data": 10, "fetch": None, "prep": None}


# -- copies and communication -------------------------------------------------------------------------------------


def test_copies(thread: Thread) -> None:
    thread.batch(10)
    with thread.during(Kind.H2D_BEGIN, Kind.H2D_END, (1024,)):
        thread.spend(3)
    thread.forward(20)
    thread.update(1)
    assert ms(thread.rows[0]) == {"compute": 21, "data": 10, "fetch": None, "prep": None, "h2d": 3}


def collective(ready: int, end: int | None) -> SimpleNamespace:
    return SimpleNamespace(ready=ready, end=end, need=None, exposed=None, stream=None)


def test_waits_are_communication(thread: Thread) -> None:
    thread.forward(20)
    with thread.during(Kind.COMM_BEGIN, Kind.COMM_END):
        thread.spend(7)
    thread.update(1)
    assert ms(thread.rows[0])["comm"] == 7
    assert thread.rows[0].compute_ns == 21 * MS


def test_bounded_wait_ends_with_the_last_collective(thread: Thread) -> None:
    start = thread.now
    thread.forward(20)
    first, second = collective(start + 21 * MS, start + 43 * MS), collective(start + 25 * MS, start + 47 * MS)
    with thread.during(Kind.BACKWARD_BEGIN, Kind.BACKWARD_END):
        thread.spend(10)
        thread.emit(Kind.COLLECTIVE, first)
        thread.emit(Kind.COLLECTIVE, second)
        thread.spend(10)
        thread.emit(Kind.COMM_BEGIN)
        thread.spend(10)
        thread.emit(Kind.COMM_END, True)
    thread.update(1)
    row = thread.rows[0]
    assert (row.comm_ns, row.compute_ns) == (7 * MS, 44 * MS)  # the 3 ms after the last collective are copies
    assert (first.need, first.exposed, second.need, second.exposed) == (
        start + 40 * MS,
        3 * MS,
        start + 40 * MS,
        4 * MS,
    )
    assert thread.steps[0].collectives == [first, second]


@pytest.mark.parametrize("end", [None, 1])
def test_bounded_wait_with_ends_unknown_or_past(thread: Thread, end: int | None) -> None:
    thread.forward(20)
    record = collective(0, end)
    thread.emit(Kind.COLLECTIVE, record)
    with thread.during(Kind.COMM_BEGIN, Kind.COMM_END, (), (True,)):
        thread.spend(7)
    thread.update(1)
    assert thread.rows[0].comm_ns == (7 * MS if end is None else 0)
    assert record.exposed == thread.rows[0].comm_ns


def test_end_of_a_wait_that_never_began(thread: Thread) -> None:
    thread.forward(20)
    thread.emit(Kind.COMM_END)
    thread.update(1)
    assert thread.rows[0].comm_ns == 0


def test_relative_microseconds() -> None:
    assert relative_us(None, 0) == NEVER
    assert relative_us(5_000, 10_000) == 0
    assert relative_us(15_999, 10_000) == 5
    assert relative_us(1 << 62, 0) == NEVER - 1


def test_communication_that_nobody_saw_is_not_zero(thread: Thread) -> None:
    thread.step()
    thread.batch(10)
    thread.emit(Kind.UNSEEN, 3)
    thread.forward(20)
    thread.update(10)
    thread.step()
    assert [row.comm_ns for row in thread.rows] == [0, None, 0]
    assert [step.unobserved for step in thread.steps] == [0, 3, 0]


@pytest.mark.parametrize(("reached", "measured"), [((), False), ((1,), False), ((1, 2), True)])
def test_communication_is_measured_once_waits_for_all_its_streams_were_seen(
    thread: Thread, reached: tuple[int, ...], measured: bool
) -> None:
    for _ in range(2):
        thread.batch(1)
        thread.forward(1)
        for stream in (1, 2):
            thread.emit(Kind.COLLECTIVE, SimpleNamespace(end=None, need=None, exposed=None, stream=stream))
        with thread.during(Kind.COMM_BEGIN, Kind.COMM_END, (), (False, None, reached)):
            thread.spend(3)
        thread.backward(1)
        thread.update(1)
    assert [row.comm_ns for row in thread.rows] == [3 * MS if measured else None] * 2


def test_a_wait_ends_when_the_device_says_that_the_last_collective_did(thread: Thread) -> None:
    thread.batch(1)
    thread.forward(1)
    thread.emit(Kind.COMM_BEGIN)
    end = thread.now + 3 * MS
    thread.spend(10)
    thread.emit(Kind.COMM_END, end)
    thread.update(1)
    (row,) = thread.rows
    assert row.comm_ns == 3 * MS
