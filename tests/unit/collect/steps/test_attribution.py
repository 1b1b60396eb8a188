"""Where the time of made-up training loops goes: each loop is written as a script would write it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ddlprof.model.events import Kind
from ddlprof.model.records import LoaderCost
from tests.unit.collect.conftest import MS, Thread, flags, ms, parts_ms


def test_step_0_starts_at_the_first_batch_request(thread: Thread) -> None:
    thread.emit(Kind.COLLECTIVE, SimpleNamespace())
    with thread.during(Kind.COMM_BEGIN, Kind.COMM_END):
        thread.spend(100)
    thread.step()
    assert thread.rows[0].start_ns == 105 * MS
    assert thread.rows[0].step_ns == 70 * MS
    assert thread.steps[0].collectives == []


# -- zeroing gradients ------------------------------------------------------------------------------------------------


def test_zeroing_in_the_first_line_of_the_step_is_compute_and_what_follows_is_not(thread: Thread) -> None:
    thread.step()
    thread.batch(10)
    thread.zero_grad(5)
    thread.spend(3)
    thread.forward(20)
    thread.backward(30)
    thread.update(10)
    assert ms(thread.rows[1]) == {"compute": 65, "data": 10, "fetch": None, "prep": None, "other": 3}
    assert parts_ms(thread.rows[1]) == [20, 30, 15]


def test_zeroing_behind_the_update_is_compute_of_the_next_step(thread: Thread) -> None:
    thread.step()
    thread.zero_grad(5)
    thread.spend(3)
    thread.step()
    first, second = thread.rows
    assert ms(first) == {"compute": 60, "data": 10, "fetch": None, "prep": None}
    assert ms(second) == {"compute": 65, "data": 10, "fetch": None, "prep": None, "other": 3}
    assert second.start_ns == first.start_ns + first.step_ns


# -- data ---------------------------------------------------------------------------------------------------------


def test_the_costs_of_batches_that_fed_training_add_up(thread: Thread) -> None:
    assert thread.assembler.loader_cost() is None
    for asked in (100, 300):
        thread.batch(1, delivery=(0.5, 0.5, 7, asked, 20))
        thread.forward(20)
        thread.update(1)
    thread.batch(1, loader=1, delivery=(0.5, 0.5, 1000, 1000, 1000))  # validation
    thread.forward(5, grad=False, training=False)
    thread.batch(1, delivery=(0.5, 0.5, 7, 300, 20), samples=None)
    thread.forward(20)
    assert len(thread.rows) == 2
    assert thread.assembler.loader_cost() == LoaderCost(2, samples=8, cpu_ns=14, asked_bytes=400, storage_bytes=40)


def test_shares_of_a_wait_do_not_count_a_copy_inside_it(thread: Thread) -> None:
    with thread.during(Kind.DATA_BEGIN, Kind.DATA_END, (0,), (0, (0.5, 0.5, 0, 0, 0), 4)):
        thread.spend(10)
        with thread.during(Kind.H2D_BEGIN, Kind.H2D_END):
            thread.spend(2)
    thread.forward(20)
    thread.update(1)
    assert ms(thread.rows[0]) == {"compute": 21, "data": 10, "fetch": 5, "prep": 5, "h2d": 2}


def test_no_wait_is_a_measured_zero_of_both_parts(thread: Thread) -> None:
    thread.step(data=0)
    row = thread.rows[0]
    assert (row.data_ns, row.data_fetch_ns, row.data_prep_ns) == (0, 0, 0)


def test_first_batch_of_an_epoch(thread: Thread) -> None:
    thread.iterate(30)
    thread.step()
    thread.step()
    first, second = thread.rows
    assert ms(first) == {"compute": 60, "data": 40, "fetch": None, "prep": None}
    assert (flags(first), flags(second)) == ("epoch_start", "")


def test_several_batches_in_a_row(thread: Thread) -> None:
    """transformers' Trainer fetches all batches of an accumulated step before the first forward."""
    for _ in range(2):
        for _ in range(3):
            thread.batch(10)
            thread.spend(1)
        for _ in range(3):
            thread.forward(20)
            thread.backward(30)
        thread.update(10)
    for row in thread.rows:
        assert ms(row) == {"compute": 160, "data": 30, "fetch": None, "prep": None, "other": 3}
        assert (row.microbatches, row.samples, row.flags) == (3, 12, 0)


def test_a_data_set_that_computes(thread: Thread) -> None:
    """Modules called while the loop waits for a batch are part of the wait, with gradients or without."""
    for grad in (True, False):
        with thread.during(Kind.DATA_BEGIN, Kind.DATA_END, (0,), (0, None, 4)):
            thread.spend(1)
            thread.forward(8, grad=grad, training=False)
            thread.spend(1)
        thread.spend(3)
        thread.forward(20)
        thread.update(1)
    for row in thread.rows:
        assert ms(row) == {"compute": 21, "data": 10, "fetch": None, "prep": None, "other": 3}
        assert row.flags == 0


# -- accumulation, evaluation, teachers ---------------------------------------------------------------------------


def test_samples_of_accumulated_steps_without_a_loader(thread: Thread) -> None:
    for _ in range(3):
        thread.forward(20)
        thread.forward(5, samples=4)  # a second network on the same batch
        thread.backward(30)
    thread.update(10)
    assert thread.rows[0].samples == 12


def evaluate(thread: Thread, batches: int, loader: int = 1) -> None:
    thread.iterate(5, loader)
    for _ in range(batches):
        thread.batch(10, loader)
        thread.spend(1)
        thread.forward(20, grad=False, training=False)
    thread.batch(2, loader, samples=0)


@pytest.mark.parametrize("batches", [1, 3])
def test_evaluation_between_steps(thread: Thread, batches: int) -> None:
    thread.step()
    evaluate(thread, batches)
    thread.spend(4)
    thread.step()
    thread.step()
    before, row, after = thread.rows
    assert ms(row) == {"compute": 60, "data": 10, "fetch": None, "prep": None, "other": 5 + batches * 31 + 2 + 4}
    assert flags(row) == "evaluation"
    assert row.samples == 4
    assert not before.flags
    assert ms(after) == ms(before)
    assert not after.flags


def test_checkpoint_before_the_update_is_no_compute(thread: Thread) -> None:
    thread.forward(20)
    with thread.during(Kind.CHECKPOINT_BEGIN, Kind.CHECKPOINT_END):
        thread.spend(50)
    thread.update(1)
    assert ms(thread.rows[0])["other"] == 50
