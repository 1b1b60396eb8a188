from __future__ import annotations

import pytest

from ddlprof.collect.steps import phases
from ddlprof.collect.steps.boundaries import SETTLED_AFTER
from ddlprof.model.records import Phase
from tests.unit.collect.conftest import LARGE, SMALL, Thread


def _train(thread: Thread, updates: int, optimizer: int, size: int, model: str = "Net") -> None:
    for _ in range(updates):
        thread.forward(20)
        thread.update(1, optimizer, name=f"Opt{optimizer}", size=size, model=model)


def test_phases_are_told_with_the_second_and_begin_with_its_first_step(thread: Thread) -> None:
    told = thread.assembler.phases
    _train(thread, SETTLED_AFTER, 0, LARGE)
    assert told.take() == []
    _train(thread, 5, 1, SMALL, "Head")
    assert told.take() == []  # they may take turns
    _train(thread, 5, 2, LARGE)
    assert told.take() == [
        Phase(0, "Opt0", LARGE, "Net"),
        Phase(SETTLED_AFTER, "Opt1", SMALL, "Head"),
        Phase(SETTLED_AFTER + 5, "Opt2", LARGE, "Net"),
    ]
    assert len(thread.rows) == SETTLED_AFTER + 10
    assert told.take() == []


def test_optimizers_that_take_turns_are_one_phase(thread: Thread) -> None:
    for _ in range(3 * SETTLED_AFTER):
        _train(thread, 2, 0, SMALL, "Critic")
        _train(thread, 1, 1, LARGE, "Generator")
    assert len(thread.rows) == 3 * SETTLED_AFTER
    assert (thread.assembler.phases.number, thread.assembler.phases.take()) == (1, [])


def test_phases_are_bounded(thread: Thread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "MOST_PHASES", 4)
    for optimizer in range(SETTLED_AFTER):
        _train(thread, 2, optimizer, LARGE)
    _train(thread, SETTLED_AFTER, SETTLED_AFTER, LARGE)
    assert [phase.step for phase in thread.assembler.phases.take()] == [0, 2, 4, 6]
    assert thread.assembler.phases.number == SETTLED_AFTER + 1
