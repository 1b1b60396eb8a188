from __future__ import annotations

import pytest

from ddlprof.collect.steps.no_grad import NoGradCalls, NoGradForwards, NoGradModule, NoGradTimes, Read
from ddlprof.model.events import Purpose

BATCH = 16


def calls(
    trained: bool = True, training_mode: bool = True, samples: int | None = BATCH, **others: object
) -> NoGradCalls:
    return NoGradCalls(NoGradModule(trained), training_mode, samples, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "purpose"),
    [
        (calls(trained=False), Purpose.TRAINING),  # a teacher
        (calls(trained=False, training_mode=False, samples=1), Purpose.TRAINING),
        (calls(trained=False, read=Read.VALUES), Purpose.TRAINING),
        (calls(), Purpose.TRAINING),  # self-conditioning, the chosen actions of double Q-learning
        (calls(samples=None), Purpose.TRAINING),
        (calls(samples=1), Purpose.ROLLOUT),
        (calls(read=Read.VALUES), Purpose.ROLLOUT),
        (calls(read=Read.COUNT), Purpose.ROLLOUT),
        (calls(training_mode=False, read=Read.VALUES), Purpose.ROLLOUT),
        (calls(training_mode=False, generates=True), Purpose.ROLLOUT),
        (calls(read=Read.LOSS), Purpose.EVALUATION),
        (calls(training_mode=False, samples=1), Purpose.EVALUATION),
        (calls(training_mode=False, read=Read.COUNT), Purpose.EVALUATION),
    ],
)
def test_what_forwards_without_gradients_are_for(found: NoGradCalls, purpose: Purpose) -> None:
    assert found.decide(BATCH) is purpose


def times(found: NoGradCalls | None, eval_mode: bool = False, ns: int = 5, after_ns: int = 3) -> NoGradForwards:
    forwards = NoGradForwards()
    forwards.begin(found, eval_mode)
    forwards.book(ns)
    forwards.book_after(after_ns)
    return forwards


def test_a_rollout_has_what_comes_between_its_forwards() -> None:
    acting, teacher = calls(samples=1), calls(trained=False)
    forwards = times(acting)
    for each in (acting, teacher):
        forwards.begin(each, False)
        forwards.book(10)
        forwards.book_after(2)
    found = forwards.times(training=True, alone=True, step=7, trained_on=BATCH)
    assert found == NoGradTimes(teaching_ns=10, acting_ns=15, after_acting_ns=5)


def test_the_value_of_the_last_state_belongs_to_the_rollout() -> None:
    acting, value = calls(read=Read.VALUES), calls(training_mode=False, samples=1)
    assert times(value).times(True, True, 0, BATCH).evaluates
    forwards = times(acting)
    forwards.begin(value, eval_mode=True)
    forwards.book(1)
    assert forwards.times(True, True, 0, BATCH) == NoGradTimes(acting_ns=6, after_acting_ns=3)
    assert value.purpose is acting.purpose is Purpose.ROLLOUT


@pytest.mark.parametrize("training", [True, False])
def test_acting_is_no_evaluation_whether_an_update_follows_or_not(training: bool) -> None:
    found = times(calls(read=Read.VALUES)).times(training, alone=False, step=0, trained_on=None)
    assert found == NoGradTimes(acting_ns=5, after_acting_ns=3)


def test_a_teacher_in_eval_mode_is_there_in_every_step() -> None:
    teacher = calls(trained=False, training_mode=False)

    def teaches(step: int) -> bool:
        found = times(teacher, eval_mode=True).times(training=True, alone=True, step=step, trained_on=BATCH)
        assert found.evaluates is (found.teaching_ns == 0)
        assert teacher.purpose is (Purpose.EVALUATION if found.evaluates else Purpose.TRAINING)
        return not found.evaluates

    assert [step for step in (0, 1, 2, 10, 20, 21) if teaches(step)] == [0, 1, 2, 21]


@pytest.mark.parametrize(
    ("evaluated", "most"),
    [([1, 3], 3), ([1, None], None), ([], 0)],
)
def test_the_most_samples_of_an_evaluation_are_told_if_all_are_known(
    evaluated: list[int | None], most: int | None
) -> None:
    forwards = times(calls(trained=False, samples=64))  # a teacher's are others
    for samples in evaluated:
        forwards.begin(calls(training_mode=False, samples=samples, read=Read.LOSS), True)
    assert forwards.times(True, False, 0, BATCH).evaluates is bool(evaluated)
    assert forwards.evaluated() == most


def test_samples_of_compiled_functions_are_not_known() -> None:
    forwards = times(None)
    forwards.times(False, False, 0, BATCH)
    assert forwards.evaluated() is None


def test_compiled_functions_are_teachers_in_front_of_a_training_forward() -> None:
    assert times(None).times(True, False, 0, BATCH) == NoGradTimes(teaching_ns=5)
    assert times(None).times(False, False, 0, BATCH) == NoGradTimes(evaluating_ns=5, evaluates=True)
    assert times(None, eval_mode=True).times(True, True, 0, BATCH) == NoGradTimes(evaluating_ns=5, evaluates=True)
