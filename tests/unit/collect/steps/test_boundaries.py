from __future__ import annotations

import pytest

from ddlprof.collect.steps import boundaries
from ddlprof.collect.steps.boundaries import RETIRED_AFTER, StepBoundaries
from ddlprof.model.events import FirstSeen, IterationStart, Kind
from tests.unit.collect.conftest import LARGE, MS, SMALL, Thread


def test_events_are_held_back_until_one_optimizer_has_stepped_often(thread: Thread) -> None:
    for _ in range(boundaries.SETTLED_AFTER - 1):
        thread.step()
    assert thread.steps == []
    thread.step()
    assert len(thread.steps) == boundaries.SETTLED_AFTER
    thread.step()
    assert len(thread.steps) == boundaries.SETTLED_AFTER + 1


def test_long_steps_are_not_held_back_long(thread: Thread) -> None:
    for _ in range(2):
        thread.batch(10)
        thread.forward(boundaries.SETTLED_AFTER_NS / MS)
        thread.update(1)
    assert len(thread.steps) == 2


def test_a_critic_that_steps_first_ends_no_step(thread: Thread) -> None:
    for _ in range(2 * boundaries.SETTLED_AFTER):
        for optimizer, size in ((0, SMALL), (1, LARGE)):
            thread.forward(20)
            thread.backward(30)
            thread.update(10, optimizer, size=size)
    assert [row.step_ns // MS for row in thread.rows] == [120] * 2 * boundaries.SETTLED_AFTER


def _steps(
    thread: Thread, number: int, optimizer: int, size: int, alive: frozenset[int] | None = None, ms: float = 20
) -> int:
    """Trains for a number of updates; returns how many steps are then known to have ended more than before."""
    before = len(thread.steps)
    for _ in range(number):
        thread.forward(ms)
        thread.update(1, optimizer, size=size, alive=alive)
    return len(thread.steps) - before


def test_a_new_optimizer_with_as_many_parameters_takes_over_at_once(thread: Thread) -> None:
    assert _steps(thread, boundaries.SETTLED_AFTER, 0, SMALL) == boundaries.SETTLED_AFTER
    assert _steps(thread, 5, 1, LARGE) == 5


def test_no_update_of_a_later_and_smaller_phase_is_lost(thread: Thread) -> None:
    _steps(thread, boundaries.SETTLED_AFTER, 0, LARGE)
    assert _steps(thread, RETIRED_AFTER - 1, 1, SMALL) == 0  # the first might go on
    assert _steps(thread, 2, 1, SMALL) == RETIRED_AFTER + 1
    assert thread.assembler.boundaries.anchor == 1
    _steps(thread, 5, 0, LARGE)  # a phase of an optimizer that was there before, until the training ends
    assert [row.compute_ns // MS for row in thread.rows] == [21] * (boundaries.SETTLED_AFTER + RETIRED_AFTER + 1 + 5)


def test_phases_that_are_shorter_than_what_is_held_back_are_each_of_their_own(thread: Thread) -> None:
    _steps(thread, boundaries.SETTLED_AFTER, 0, LARGE)
    for optimizer, size in ((1, SMALL), (2, SMALL // 2), (3, LARGE), (4, SMALL)):
        _steps(thread, 5, optimizer, size)
    assert [row.compute_ns // MS for row in thread.rows] == [21] * (boundaries.SETTLED_AFTER + 4 * 5)


def test_a_smaller_optimizer_that_begins_to_take_turns_ends_no_step(thread: Thread) -> None:
    rounds = 3
    _steps(thread, boundaries.SETTLED_AFTER, 0, LARGE)
    for _ in range(rounds):
        _steps(thread, 5, 1, SMALL)  # a critic, from when the generator has been warmed up
        assert _steps(thread, 1, 0, LARGE) == 1
    assert [row.compute_ns // MS for row in thread.rows[boundaries.SETTLED_AFTER :]] == [6 * 21] * rounds
    assert thread.assembler.boundaries.settled  # of two that are known to take turns nothing is held back


def test_one_that_took_turns_and_goes_on_alone_loses_the_updates_of_one_round_at_most(thread: Thread) -> None:
    for _ in range(boundaries.SETTLED_AFTER):
        _steps(thread, 2, 0, SMALL)
        _steps(thread, 1, 1, LARGE)
    _steps(thread, RETIRED_AFTER, 0, SMALL)
    assert thread.assembler.boundaries.anchor == 0
    assert len(thread.rows) == boundaries.SETTLED_AFTER + RETIRED_AFTER - 2
    assert [row.compute_ns // MS for row in thread.rows] == [63] * (boundaries.SETTLED_AFTER + 1) + [21] * 47


def test_rounds_of_changing_lengths_stay_rounds(thread: Thread) -> None:
    rounds = [1, 3, 2, 5, 1, 9, 4, 30, 2] + [1] * boundaries.SETTLED_AFTER
    for updates in rounds:
        _steps(thread, updates, 0, SMALL)
        _steps(thread, 1, 1, LARGE)
    assert [row.compute_ns // MS for row in thread.rows] == [21 * (updates + 1) for updates in rounds]


def test_a_smaller_phase_is_known_at_once_where_the_optimizer_before_is_gone(thread: Thread) -> None:
    _steps(thread, boundaries.SETTLED_AFTER, 0, LARGE)
    assert _steps(thread, 3, 1, SMALL, alive=frozenset({1})) == 3
    assert _steps(thread, 3, 2, SMALL // 2, alive=frozenset({1, 2})) == 0  # the one before could still go on


def test_a_smaller_phase_of_long_steps_is_not_held_back_long(thread: Thread) -> None:
    _steps(thread, boundaries.SETTLED_AFTER, 0, LARGE)
    step = boundaries.SETTLED_AFTER_NS / MS / (boundaries.SETTLED_AFTER - 1)
    assert _steps(thread, boundaries.SETTLED_AFTER, 1, SMALL, ms=step) == boundaries.SETTLED_AFTER


def test_lost_events_end_what_is_held_back(thread: Thread) -> None:
    _steps(thread, boundaries.SETTLED_AFTER, 0, LARGE)
    assert _steps(thread, 5, 1, SMALL) == 0
    thread.emit(Kind.LOST, {1: 7}, 30, {})
    assert len(thread.steps) == boundaries.SETTLED_AFTER + 5
    assert thread.assembler.lost_steps == 7


def test_phases_in_the_first_steps_are_no_round(thread: Thread) -> None:
    for optimizer in range(3):  # folds of a cross-validation
        for _ in range(2):
            thread.forward(20)
            thread.update(1, optimizer)
    assert len(thread.rows) == 6


def test_rounds_of_the_loader_where_no_optimizer_steps(thread: Thread) -> None:
    thread.assembler.boundaries.optimizer_exists = lambda: False
    for _ in range(boundaries.ROUNDS_WITHOUT_OPTIMIZER + 2):
        thread.emit(Kind.ITERATION, IterationStart.LOADER)
        thread.batch(10)
        thread.forward(20)
        thread.backward(30)
        thread.spend(5)  # the update
    assert thread.assembler.boundaries.rounds == IterationStart.LOADER
    rows = thread.rows
    assert [row.samples for row in rows] == [4] * (boundaries.ROUNDS_WITHOUT_OPTIMIZER + 2)
    assert [row.compute_ns // MS for row in rows[:-1]] == [55] * (len(rows) - 1)
    note = thread.assembler.boundaries.note()
    assert note is not None
    assert "each batch of the loader" in note


def test_micro_batches_before_the_first_update_are_no_steps(thread: Thread) -> None:
    for _ in range(2):
        for _ in range(boundaries.ROUNDS_WITHOUT_OPTIMIZER + 2):
            thread.emit(Kind.ITERATION, IterationStart.LOADER)
            thread.batch(10)
            thread.forward(20)
            thread.backward(30)
        thread.update(1)
    assert [row.microbatches for row in thread.rows] == [boundaries.ROUNDS_WITHOUT_OPTIMIZER + 2] * 2
    assert thread.assembler.boundaries.note() is None


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, thread: Thread) -> None:
    monkeypatch.setattr(boundaries, "_MOST_HELD", 30)
    for _ in range(40):
        thread.forward(1)
    assert thread.assembler.boundaries.settled


@pytest.mark.parametrize("made_again", [True, False])
def test_an_optimizer_for_each_update_is_counted(thread: Thread, made_again: bool) -> None:
    assert thread.assembler.boundaries.new_share is None
    for number in range(boundaries.SETTLED_AFTER):
        thread.forward(20)
        thread.update(1, number, made_again=made_again)
    list(thread.assembler.finish())
    assert thread.assembler.boundaries.new_share == made_again


def test_those_in_a_backward_are_no_updates_of_their_own(thread: Thread) -> None:
    for number in range(4):
        thread.forward(20)
        with thread.during(Kind.BACKWARD_BEGIN, Kind.BACKWARD_END):
            thread.update(1, 10 + number, made_again=True)
        thread.update(1)
    list(thread.assembler.finish())
    assert thread.assembler.boundaries.new_share == 0


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_passes_that_an_update_calls_for_are_counted(thread: Thread, passes: int) -> None:
    for _ in range(4):
        thread.forward(20)
        thread.backward(10)
        with thread.updating(0):
            for _ in range(passes):
                thread.forward(5)
                thread.backward(5)
    list(thread.assembler.finish())
    assert thread.assembler.passes_in_update == passes


def test_labels_tell_optimizers_of_one_class_apart() -> None:
    names = StepBoundaries()
    for optimizer, name in enumerate(("Adam", "SGD", "Adam")):
        names.learn(optimizer, FirstSeen(name, 10))
    assert [names.label(optimizer) for optimizer in range(3)] == ["Adam#1", "SGD", "Adam#2"]


def test_a_name_that_none_has_is_told_with_those_that_there_are() -> None:
    found = StepBoundaries("Adam#3")
    for optimizer, name in enumerate(("Adam", "SGD", "Adam")):
        found.learn(optimizer, FirstSeen(name, 1000))
    assert found.note() == (
        "--step-optimizer Adam#3 is none of those that stepped: "
        "Adam#1 (parameters: 1,000), SGD (parameters: 1,000), Adam#2 (parameters: 1,000)"
    )


def test_an_optimizer_that_comes_after_rounds_ends_the_steps(thread: Thread) -> None:
    thread.assembler.boundaries.optimizer_exists = lambda: False
    for _ in range(boundaries.ROUNDS_WITHOUT_OPTIMIZER + 1):
        thread.emit(Kind.ITERATION, IterationStart.LOADER)
        thread.batch(10)
        thread.forward(20)
        thread.backward(30)
    assert thread.assembler.boundaries.rounds == IterationStart.LOADER
    by_hand = len(thread.steps)
    for _ in range(3):
        for micro_batch in range(4):
            if micro_batch:
                thread.emit(Kind.ITERATION, IterationStart.LOADER)
            thread.batch(10)
            thread.forward(20)
            thread.backward(30)
        thread.update(1)
    assert thread.assembler.boundaries.rounds is None
    assert [row.microbatches for row in thread.rows[by_hand + 4 :]] == [4, 4]


@pytest.mark.parametrize(
    ("updates", "steps"),
    [({1: 7, 0: 3}, 3), ({1: 7}, 0), ({2: RETIRED_AFTER}, RETIRED_AFTER), ({None: 9}, 0), ({}, 0)],
)
def test_steps_among_lost_updates_are_those_of_the_anchor_or_of_what_took_over(
    updates: dict[int | None, int], steps: int
) -> None:
    boundaries = StepBoundaries()
    boundaries.anchor = 0
    assert boundaries.lost(updates, {2: FirstSeen("Adam", 10)}) == steps
    assert boundaries.names == {2: "Adam"}
    boundaries.rounds = IterationStart.LOADER
    assert boundaries.lost(updates, {}) == updates.get(None, 0)
