"""How often a job does what it does besides steps: told by what happened between steps, not at the ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ddlprof.analysis.habits import Habit, habits
from ddlprof.analysis.job_time import job_time
from ddlprof.analysis.run import analyse
from ddlprof.model.records import Flag
from ddlprof.store import RankData, RunData
from tests.golden.runs import header
from tests.unit.analysis.test_job_time import START_MS, rank_of, rows_of


def habits_of(*ranks: RankData) -> dict[str, Habit]:
    (attempt,) = analyse(RunData(("run",), None, list(ranks)))
    job = job_time(attempt)
    assert job is not None
    return habits(attempt, job)


def in_steps(what: str, steps: Sequence[int], ms: float = 4) -> list[tuple[str, float, float]]:
    begins = [START_MS + 10 * step + 1 for step in steps]
    return [(what, begin, begin + ms) for begin in begins]


def flagged(flag: Flag, steps: Sequence[int]) -> dict[int, tuple[int, dict[str, Any]]]:
    return {step: (int(flag), {}) for step in steps}


def test_a_job_that_only_trains_has_none() -> None:
    assert habits_of(rank_of(rows_of())) == {}


def test_what_happens_between_steps_recurs() -> None:
    spans = [*in_steps("checkpoint", [10, 20, 30]), *in_steps("evaluation", [25], ms=8)]
    rows = rows_of(flagged(Flag.CHECKPOINT, [10, 20, 30]) | flagged(Flag.EVALUATION, [25]))
    found = habits_of(rank_of(rows, spans))
    assert found == {"checkpoint": Habit(0.004, 10), "evaluation": Habit(0.008, 25)}


def test_what_happens_at_the_ends_only_is_known_once() -> None:
    spans = [("evaluation", 100.0, 140.0), ("checkpoint", START_MS + 420.0, START_MS + 440.0)]
    found = habits_of(rank_of(rows_of(), spans))
    assert found == {"evaluation": Habit(0.04, None), "checkpoint": Habit(0.02, None)}


def test_the_one_at_the_end_does_not_tell_how_often() -> None:
    spans = [*in_steps("evaluation", [30]), ("evaluation", START_MS + 410.0, START_MS + 414.0)]
    assert habits_of(rank_of(rows_of(flagged(Flag.EVALUATION, [30])), spans)) == {"evaluation": Habit(0.004, 30)}


def test_an_evaluation_in_most_steps_is_part_of_the_mean_step() -> None:
    spans = in_steps("evaluation", range(40))
    assert habits_of(rank_of(rows_of(flagged(Flag.EVALUATION, range(40))), spans)) == {}


@pytest.mark.parametrize(("epochs", "every"), [([0], None), ([0, 15, 30], 15)])
def test_epochs(epochs: list[int], every: float | None) -> None:
    rows = rows_of({step: (int(Flag.EPOCH_START), {"data_ms": 61}) for step in epochs})
    assert habits_of(rank_of(rows)) == {"epoch_start": Habit(0.06, every)}


def test_an_older_run_tells_of_epochs_only() -> None:
    rows = rows_of(flagged(Flag.EVALUATION, [10]) | flagged(Flag.EPOCH_START, [0]))
    assert set(habits_of(rank_of(rows, head=header()))) == {"epoch_start"}
