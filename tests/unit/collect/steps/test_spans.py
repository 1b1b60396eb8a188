"""Evaluations and checkpoints of made-up training loops: when they begin and end, inside steps and outside."""

from __future__ import annotations

from typing import Any

import pytest

from ddlprof.collect.steps import spans as module
from ddlprof.collect.steps.spans import JobSpans
from ddlprof.model.events import Kind
from ddlprof.model.records import JobSpan
from tests.unit.collect.conftest import MS, Thread, flags


def spans(thread: Thread) -> list[tuple[Any, ...]]:
    """What, and begin and length in milliseconds, of all that is over at the end."""
    thread.steps += thread.assembler.finish()
    return [(span.what, span.start_ns / MS, span.duration_ns / MS) for span in thread.assembler.spans.take()]


def save(thread: Thread, ms: float) -> None:
    with thread.during(Kind.CHECKPOINT_BEGIN, Kind.CHECKPOINT_END):
        thread.spend(ms)


def evaluate(thread: Thread, batches: int = 3, loader: int = 1) -> None:
    """4 ms for the iterator, then 20 ms a batch, 10 of them code of the script; 2 ms until the loader is at its end."""
    thread.iterate(4, loader)
    for _ in range(batches):
        thread.batch(3, loader)
        thread.forward(7, grad=False, training=False)
        thread.spend(10)
    thread.batch(2, loader, samples=0)


def test_ordinary_steps_have_none(thread: Thread) -> None:
    thread.iterate(5)
    for _ in range(5):
        thread.step()
        thread.spend(3)
    assert spans(thread) == []


def test_an_evaluation_between_steps(thread: Thread) -> None:
    thread.step()  # until 75
    thread.spend(5)
    evaluate(thread)
    thread.spend(9)
    thread.step()
    assert spans(thread) == [("evaluation", 80, 66)]
    assert [flags(row) for row in thread.rows] == ["", "evaluation"]


def test_evaluations_of_several_loaders_in_a_row_are_one(thread: Thread) -> None:
    thread.step()
    evaluate(thread, loader=1)
    thread.spend(8)
    evaluate(thread, loader=2)
    thread.step()
    evaluate(thread, loader=1)
    assert spans(thread) == [("evaluation", 75, 140), ("evaluation", 285, 66)]


def test_an_evaluation_before_the_training_and_one_after_the_last_step(thread: Thread) -> None:
    evaluate(thread)
    thread.step()
    thread.spend(1)
    evaluate(thread)
    thread.spend(1000)
    assert spans(thread) == [("evaluation", 5, 66), ("evaluation", 142, 66)]
    assert len(thread.rows) == 1


def test_an_evaluation_without_a_loader(thread: Thread) -> None:
    thread.step()
    thread.spend(5)
    for _ in range(2):
        thread.forward(7, grad=False, training=False)
        thread.spend(1)
    thread.forward(20)
    thread.update(1)
    assert spans(thread) == [("evaluation", 80, 15)]


def test_a_teacher_is_no_evaluation(thread: Thread) -> None:
    for _ in range(3):
        thread.batch(10)
        thread.forward(15, grad=False, training=False)
        thread.forward(20)
        thread.backward(30)
        thread.update(1)
    assert spans(thread) == []


def test_checkpoints(thread: Thread) -> None:
    save(thread, 10)  # from 5 on, before any step
    thread.step()
    save(thread, 20)  # from 85 on
    thread.spend(5)
    save(thread, 30)
    thread.step()
    thread.batch(10)
    save(thread, 5)  # 220
    thread.forward(20)
    thread.update(1)
    save(thread, 40)  # 246, and after the last step
    assert spans(thread) == [
        ("checkpoint", 5, 10),
        ("checkpoint", 85, 55),
        ("checkpoint", 220, 5),
        ("checkpoint", 246, 40),
    ]
    assert [flags(row) for row in thread.rows] == ["", "checkpoint", "checkpoint"]


def test_a_batch_ends_a_checkpoint(thread: Thread) -> None:
    thread.step()
    save(thread, 10)
    thread.batch(100)
    save(thread, 5)
    thread.forward(20)
    thread.update(1)
    assert spans(thread) == [("checkpoint", 75, 10), ("checkpoint", 185, 5)]


def test_the_best_model_is_saved_between_two_evaluations(thread: Thread) -> None:
    thread.step()
    evaluate(thread)
    save(thread, 30)
    evaluate(thread, loader=2)
    thread.step()
    assert sorted(spans(thread)) == [("checkpoint", 141, 30), ("evaluation", 75, 162)]


def test_the_number_of_spans_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SPANS", 3)
    found = JobSpans(10)
    for begin in range(5):
        found.evaluation(begin, begin + 1)
        found.trained()
    found.add("checkpoint", 20, 25)
    assert found.take() == [*(JobSpan("evaluation", begin - 10, 1) for begin in range(3)), JobSpan("checkpoint", 10, 5)]
    assert found.left_out == {"evaluation"}
    assert found.take() == []
