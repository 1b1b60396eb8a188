"""What a sample costs to load, and the counts of a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis.features import (
    RecurringWork,
    SampleCost,
    loader_cost,
    recurring_work,
    reductions_per_step,
    sample_cost,
)
from ddlprof.analysis.job_time import job_time
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.model.records import Flag, LoaderCost
from ddlprof.store import RankData, RunData, load_run
from tests.golden.runs import HERE, MS, Record, header, step, write_rank
from tests.unit.analysis.test_job_time import START_MS, rank_of, rows_of


def cost(step: int, samples: int, cpu_ms: int, asked: int | None = 0, storage: int | None = 0) -> LoaderCost:
    return LoaderCost(step, samples, cpu_ms * MS, asked, storage)


def test_what_came_before_the_steady_steps_is_left_out() -> None:
    records = [cost(2, 50, 900, 5000), cost(9, 100, 1000, 10_000), cost(20, 300, 1400, 50_000)]
    assert sample_cost([records], first_steady_step=9) == SampleCost(0.002, 200.0)
    assert sample_cost([records], first_steady_step=3) == SampleCost(0.002, 180.0)


def test_of_a_short_run_everything_counts() -> None:
    assert sample_cost([[cost(40, 100, 300, 10_000)]], first_steady_step=9) == SampleCost(0.003, 100.0)
    assert sample_cost([[cost(5, 100, 300), cost(5, 100, 300)]], first_steady_step=9) == SampleCost(0.003, 0.0)


def test_nothing_recorded_is_nothing_known() -> None:
    assert sample_cost([[], []], 0) is None
    assert sample_cost([[cost(3, 0, 0)]], 0) is None


def one_rank(directory: Path, *records: Record) -> Attempt:
    write_rank(directory, header(), [step(n) for n in range(40)], records=records)
    (attempt,) = analyse(load_run(directory))
    return attempt


def test_from_a_run(tmp_path: Path) -> None:
    attempt = one_rank(tmp_path, cost(1, 32, 500), cost(39, 32 + 640, 500 + 1280, 6400))
    assert loader_cost(attempt) == SampleCost(0.002, 10.0)
    assert loader_cost(one_rank(tmp_path / "no-loader")) is None


def test_reductions_of_the_golden_run(tmp_path: Path) -> None:
    (attempt,) = analyse(load_run(HERE / "two-ranks"))
    assert reductions_per_step(attempt) == 2
    assert reductions_per_step(one_rank(tmp_path)) is None


def habits_of(*ranks: RankData) -> dict[str, RecurringWork]:
    (attempt,) = analyse(RunData(("run",), None, list(ranks)))
    job = job_time(attempt)
    assert job is not None
    return recurring_work(attempt, job)


def in_steps(what: str, steps: Sequence[int], ms: float = 4) -> list[tuple[str, float, float]]:
    begins = [START_MS + 10 * step + 1 for step in steps]
    return [(what, begin, begin + ms) for begin in begins]


def flagged(flag: Flag, steps: Sequence[int]) -> dict[int, tuple[int, dict[str, Any]]]:
    return {step: (int(flag), {}) for step in steps}


def test_what_happens_between_steps_recurs() -> None:
    spans = [*in_steps("checkpoint", [10, 20, 30]), *in_steps("evaluation", [25], ms=8)]
    rows = rows_of(flagged(Flag.CHECKPOINT, [10, 20, 30]) | flagged(Flag.EVALUATION, [25]))
    found = habits_of(rank_of(rows, spans))
    assert found == {"checkpoint": RecurringWork(0.004, 10), "evaluation": RecurringWork(0.008, 25)}


def test_the_one_at_the_end_does_not_tell_how_often() -> None:
    spans = [*in_steps("evaluation", [30]), ("evaluation", START_MS + 410.0, START_MS + 414.0)]
    assert habits_of(rank_of(rows_of(flagged(Flag.EVALUATION, [30])), spans)) == {
        "evaluation": RecurringWork(0.004, 30)
    }


@pytest.mark.parametrize(("epochs", "every"), [([0], None), ([0, 15, 30], 15)])
def test_epochs(epochs: list[int], every: float | None) -> None:
    rows = rows_of({step: (int(Flag.EPOCH_START), {"data_ms": 61}) for step in epochs})
    assert habits_of(rank_of(rows)) == {"epoch_start": RecurringWork(0.06, every)}
