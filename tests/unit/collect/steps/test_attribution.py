"""Where the time of made-up training loops goes: each loop is written as a script would write it."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.model.events import FIELDS, Kind
from ddlprof.model.records import LoaderCost
from tests.unit.collect.conftest import MS, Thread, flags, ms, parts_ms


def test_plain_step(thread: Thread) -> None:
    thread.batch(10)
    thread.spend(2)
    thread.forward(20)
    thread.spend(3)
    thread.backward(30)
    thread.spend(4)
    thread.update(1)
    (row,) = thread.rows
    assert (row.step, row.start_ns, row.step_ns) == (0, 5 * MS, 70 * MS)
    assert ms(row) == {"compute": 58, "data": 10, "fetch": None, "prep": None, "other": 2}
    assert (row.microbatches, row.samples, row.flags) == (1, 4, 0)


def test_time_after_the_update_is_the_next_steps_other(thread: Thread) -> None:
    thread.step()
    thread.spend(7)
    thread.step()
    first, second = thread.rows
    assert second.start_ns == first.start_ns + first.step_ns
    assert ms(second) == {"compute": 60, "data": 10, "fetch": None, "prep": None, "other": 7}


def test_step_0_starts_at_the_first_batch_request(thread: Thread) -> None:
    thread.emit(Kind.COLLECTIVE, SimpleNamespace())
    with thread.during(Kind.COMM_BEGIN, Kind.COMM_END):
        thread.spend(100)
    thread.step()
    assert thread.rows[0].start_ns == 105 * MS
    assert thread.rows[0].step_ns == 70 * MS
    assert thread.steps[0].collectives == []


def test_step_0_starts_at_the_first_forward(thread: Thread) -> None:
    thread.spend(100)
    thread.forward(20)
    thread.update(1)
    assert thread.rows[0].start_ns == 105 * MS


def test_what_follows_the_last_update_is_no_step(thread: Thread) -> None:
    thread.step()
    thread.batch(10)
    thread.forward(20, grad=False)
    assert len(thread.rows) == 1


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


def test_zeroing_within_the_step_is_no_gap(thread: Thread) -> None:
    thread.step()
    thread.batch(10)
    thread.forward(20)
    thread.zero_grad(5)
    thread.backward(30)
    thread.update(10)
    assert ms(thread.rows[1]) == {"compute": 65, "data": 10, "fetch": None, "prep": None}


def test_zeroing_before_the_first_batch_begins_no_step(thread: Thread) -> None:
    thread.zero_grad(100)
    thread.step()
    assert thread.rows[0].start_ns == 105 * MS
    assert thread.rows[0].step_ns == 70 * MS


# -- data ---------------------------------------------------------------------------------------------------------


def test_the_wait_is_split_by_the_shares(thread: Thread) -> None:
    thread.batch(10, delivery=(0.5, 0.25, 0, 0, 0))
    thread.batch(20, delivery=(0.0, 1.0, 0, 0, 0))
    thread.forward(20)
    thread.update(1)
    assert ms(thread.rows[0]) == {"compute": 21, "data": 30, "fetch": 5, "prep": 22.5}


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


def test_bytes_that_were_not_counted_once_are_not_known_in_all(thread: Thread) -> None:
    for counted in (None, 100):
        thread.batch(1, delivery=(0.5, 0.5, 7, counted, counted))
        thread.forward(20)
        thread.update(1)
    assert len(thread.rows) == 2
    assert thread.assembler.loader_cost() == LoaderCost(2, 8, 14, None, None)


def test_shares_of_a_wait_do_not_count_a_copy_inside_it(thread: Thread) -> None:
    with thread.during(Kind.DATA_BEGIN, Kind.DATA_END, (0,), (0, (0.5, 0.5, 0, 0, 0), 4)):
        thread.spend(10)
        with thread.during(Kind.H2D_BEGIN, Kind.H2D_END):
            thread.spend(2)
    thread.forward(20)
    thread.update(1)
    assert ms(thread.rows[0]) == {"compute": 21, "data": 10, "fetch": 5, "prep": 5, "h2d": 2}


def test_without_a_loader_data_is_not_measured(thread: Thread) -> None:
    thread.forward(20)
    thread.backward(30)
    thread.update(1)
    (row,) = thread.rows
    assert (row.data_ns, row.data_fetch_ns, row.data_prep_ns) == (None, None, None)
    assert (row.h2d_ns, row.comm_ns) == (0, 0)
    assert row.samples == 4


@pytest.mark.parametrize("lacking", ["data", "h2d", "comm"])
def test_a_class_that_is_not_measured_is_none_and_its_time_other(thread: Thread, lacking: str) -> None:
    thread.assembler.unmeasured.add(lacking)
    thread.step(data=0)
    (row,) = thread.rows
    assert getattr(row, f"{lacking}_ns") is None
    assert row.compute_ns + row.other_ns == row.step_ns


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


def test_end_of_an_epoch_belongs_to_the_data_of_the_next_step(thread: Thread) -> None:
    thread.step()
    thread.batch(3, samples=0)
    thread.spend(2)
    thread.iterate(30)
    thread.step()
    assert ms(thread.rows[1]) == {"compute": 60, "data": 43, "fetch": None, "prep": None, "other": 2}


@pytest.mark.parametrize("samples", [4, None])
def test_between_batch_and_forward_is_other(thread: Thread, samples: int | None) -> None:
    thread.batch(10, samples=samples)
    thread.spend(5)
    thread.forward(20)
    thread.update(1)
    assert ms(thread.rows[0]) == {"compute": 21, "data": 10, "fetch": None, "prep": None, "other": 5}


def test_next_batch_before_the_update(thread: Thread) -> None:
    """`batch = next(it)` while the backward's result is not applied yet."""
    thread.batch(10)
    for _ in range(3):
        thread.forward(20)
        thread.backward(30)
        thread.batch(5)
        thread.update(10)
    first, *rest = thread.rows
    assert ms(first) == {"compute": 60, "data": 15, "fetch": None, "prep": None}
    assert [ms(row)["data"] for row in rest] == [5, 5]
    assert not any(row.flags for row in thread.rows)


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


def test_gradient_accumulation(thread: Thread) -> None:
    for _ in range(4):
        thread.batch(10)
        thread.forward(20)
        thread.backward(30)
    thread.update(10)
    (row,) = thread.rows
    assert ms(row) == {"compute": 210, "data": 40, "fetch": None, "prep": None}
    assert (row.microbatches, row.samples) == (4, 16)


def test_samples_of_accumulated_steps_without_a_loader(thread: Thread) -> None:
    for _ in range(3):
        thread.forward(20)
        thread.forward(5, samples=4)  # a second network on the same batch
        thread.backward(30)
    thread.update(10)
    assert thread.rows[0].samples == 12


def test_samples_of_forwards_whose_backwards_follow_all_of_them(thread: Thread) -> None:
    """As in a stage of a pipeline, which sends what it made of some micro-batches before gradients come back."""
    for _ in range(2):
        thread.forward(20)
        thread.forward(20)
        thread.forward(20)
        thread.backward(30)
        thread.forward(20)
        for _ in range(3):
            thread.backward(30)
        thread.update(10)
    assert [(row.microbatches, row.samples) for row in thread.rows] == [(4, 16)] * 2


def test_samples_of_two_backwards_through_one_forward(thread: Thread) -> None:
    thread.batch(10)
    thread.forward(20)
    thread.backward(30)
    thread.backward(30)
    thread.update(10)
    thread.forward(20)
    thread.backward(30)
    thread.backward(30)
    thread.update(10)
    assert [row.samples for row in thread.rows] == [4, 4]


def test_samples_of_a_trunk_with_heads_whose_losses_have_a_backward_each(thread: Thread) -> None:
    for _ in range(4):  # a trunk and three heads
        thread.forward(20)
    for _ in range(3):
        thread.backward(30)
    thread.update(10)
    assert [row.samples for row in thread.rows] == [4]


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


def test_evaluation_before_the_first_step(thread: Thread) -> None:
    evaluate(thread, 2)
    thread.step()
    assert ms(thread.rows[0]) == {"compute": 60, "data": 10, "fetch": None, "prep": None, "other": 69}
    assert flags(thread.rows[0]) == "evaluation"


def test_evaluation_that_is_left_early(thread: Thread) -> None:
    thread.step()
    thread.iterate(5, loader=1)
    thread.batch(10, loader=1)
    thread.forward(20, grad=False, training=False)
    thread.step()
    assert ms(thread.rows[1]) == {"compute": 60, "data": 10, "fetch": None, "prep": None, "other": 35}


def test_evaluation_without_a_loader(thread: Thread) -> None:
    """`estimate_loss()` of a script that reads a memory map."""
    for evaluating in (False, True, False):
        if evaluating:
            for _ in range(5):
                thread.forward(20, grad=False, training=False)
        thread.forward(20)
        thread.backward(30)
        thread.update(10)
    assert [flags(row) for row in thread.rows] == ["", "evaluation", ""]
    assert [row.compute_ns // MS for row in thread.rows] == [60, 60, 60]
    assert thread.rows[1].other_ns == 100 * MS


def test_an_evaluation_with_gradients(thread: Thread) -> None:
    """`torch.no_grad()` is missing: no backward follows what the model computes in eval mode."""
    thread.step()
    for _ in range(3):
        thread.batch(10, loader=1)
        thread.forward(20, training=False)
        thread.spend(4)  # the loss
    thread.batch(2, loader=1, samples=0)
    thread.step()
    thread.step()
    before, _, after = thread.rows
    assert [flags(each) for each in thread.rows] == ["", "evaluation", ""]
    assert ms(after) == ms(before)
    assert thread.assembler.evaluates_with_gradients is True
    (span,) = thread.assembler.spans.take()
    assert (span.what, span.duration_ns // MS) == ("evaluation", 3 * 34 + 2)


@pytest.mark.parametrize("trained", [True, False])
def test_forwards_in_eval_mode_may_be_training(thread: Thread, trained: bool) -> None:
    """With layers of normalisation that stay as they are; batches of which one backward is for two; a teacher."""
    if trained:
        thread.step()
    for _ in range(2):
        thread.batch(10)
        thread.forward(20, training=False)
        if trained:
            thread.forward(20)  # the student
        else:
            thread.batch(10)
            thread.forward(20, training=False)
        thread.backward(30)
        thread.update(10)
    assert not any(row.flags for row in thread.rows)
    assert not thread.assembler.evaluates_with_gradients
    assert thread.assembler.spans.take() == []


@pytest.mark.parametrize("training_mode", [True, False])
def test_teacher_before_the_student(thread: Thread, training_mode: bool) -> None:
    thread.batch(10)
    thread.forward(15, grad=False, training=training_mode)
    thread.forward(20)
    thread.backward(30)
    thread.update(1)
    assert ms(thread.rows[0]) == {"compute": 66, "data": 10, "fetch": None, "prep": None}
    assert not thread.rows[0].flags


@pytest.mark.parametrize("loader", [True, False])
def test_teacher_after_the_student(thread: Thread, loader: bool) -> None:
    for _ in range(2):
        if loader:
            thread.batch(10)
        thread.forward(20)
        thread.forward(15, grad=False, training=False)
        thread.backward(30)
        thread.update(1)
    for row in thread.rows:
        assert row.compute_ns == 66 * MS
        assert not row.flags


def test_checkpoint_is_other(thread: Thread) -> None:
    thread.step()
    with thread.during(Kind.CHECKPOINT_BEGIN, Kind.CHECKPOINT_END):
        thread.spend(50)
    thread.step()
    assert ms(thread.rows[1]) == {"compute": 60, "data": 10, "fetch": None, "prep": None, "other": 50}
    assert [flags(row) for row in thread.rows] == ["", "checkpoint"]


def test_checkpoint_before_the_update_is_no_compute(thread: Thread) -> None:
    thread.forward(20)
    with thread.during(Kind.CHECKPOINT_BEGIN, Kind.CHECKPOINT_END):
        thread.spend(50)
    thread.update(1)
    assert ms(thread.rows[0])["other"] == 50


@pytest.mark.parametrize(("kind", "name"), [(Kind.COMPILE, "compile"), (Kind.TRACED, "traced")])
def test_unusual_steps_are_flagged(thread: Thread, kind: Kind, name: str) -> None:
    thread.batch(10)
    thread.emit(kind)
    thread.forward(20)
    thread.update(1)
    thread.step()
    assert [flags(row) for row in thread.rows] == [name, ""]


@pytest.mark.parametrize("kind", Kind)
def test_a_handler_takes_the_payload_by_the_names_of_its_fields(kind: Kind) -> None:
    handler = getattr(StepAssembler, f"_{kind.name.lower()}")
    names = list(inspect.signature(handler).parameters)[2:]
    fields = FIELDS.get(kind, ())
    assert names == [*fields, *"abc"[len(fields) :]]
