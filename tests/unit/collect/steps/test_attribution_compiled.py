"""Calls of compiled functions, of which the hooks cannot tell whether the model is in them."""

from __future__ import annotations

from tests.unit.collect.conftest import Thread, flags, ms

DELIVERY = (0.5, 0.5, 0, 0, 0)


def compiled(thread: Thread, duration_ms: float) -> None:
    thread.forward(duration_ms, grad=False, training=None)  # type: ignore[arg-type]


def test_transform_of_the_training_batch_is_computation(thread: Thread) -> None:
    thread.batch(10, delivery=DELIVERY)
    compiled(thread, 5)
    thread.forward(20)
    thread.backward(30)
    thread.update(10)
    assert ms(thread.rows[0]) == {"compute": 65, "data": 10, "fetch": 5, "prep": 5}
    assert flags(thread.rows[0]) == ""


def test_metric_average_and_update_are_no_evaluation(thread: Thread) -> None:
    for _ in range(2):
        thread.batch(10, delivery=DELIVERY)
        thread.forward(20)
        compiled(thread, 3)
        thread.backward(30)
        compiled(thread, 4)
        thread.update(10)
        compiled(thread, 5)
    assert ms(thread.rows[1]) == {"compute": 67, "data": 10, "fetch": 5, "prep": 5, "other": 5}
    assert [flags(row) for row in thread.rows] == ["", ""]


def test_transform_of_the_next_batch_between_forward_and_backward(thread: Thread) -> None:
    thread.batch(10, delivery=DELIVERY)
    for _ in range(2):
        thread.forward(20)
        thread.batch(10, delivery=DELIVERY)
        compiled(thread, 3)
        thread.backward(30)
        thread.update(10)
    assert ms(thread.rows[1]) == {"compute": 63, "data": 10, "fetch": 5, "prep": 5}
    assert flags(thread.rows[1]) == ""


def test_batches_that_only_compiled_functions_without_gradients_see_are_an_evaluation(thread: Thread) -> None:
    thread.step()
    for _ in range(3):
        thread.batch(10, delivery=DELIVERY, loader=1)
        compiled(thread, 20)
    thread.batch(10, delivery=DELIVERY)
    thread.forward(20)
    thread.backward(30)
    thread.update(10)
    assert ms(thread.rows[1]) == {"compute": 60, "data": 10, "fetch": 5, "prep": 5, "other": 90}
    assert flags(thread.rows[1]) == "evaluation"


def test_backward_that_no_hook_sees_is_a_micro_batch(thread: Thread) -> None:
    """`torch.autograd.grad`, `torch.func.grad`: gradients without a call of backward."""
    for _ in range(2):
        thread.forward(20)
        thread.spend(30)
        thread.update(10)
    assert [row.microbatches for row in thread.rows] == [1, 1]
    assert [row.samples for row in thread.rows] == [4, 4]
    assert ms(thread.rows[1]) == {"compute": 60, "data": None, "fetch": None, "prep": None}
