"""What a sample costs to load, and the counts of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis.features import (
    RecurringWork,
    SampleCost,
    kernels_per_step,
    loader_cost,
    recurring_work,
    reductions_per_step,
    sample_cost,
)
from ddlprof.analysis.job_time import job_time
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.model.records import Flag, LoaderCost, WindowRow
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


def test_ranks_are_weighed_by_their_samples() -> None:
    assert sample_cost([[cost(9, 100, 100)], [cost(9, 300, 900)], []], 0) == SampleCost(0.0025, 0.0)


def test_bytes_are_those_asked_for_or_those_from_storage_whichever_are_more() -> None:
    read, mapped = cost(9, 10, 1, asked=1000, storage=100), cost(9, 10, 1, asked=5, storage=4000)
    assert [found.read_bytes for r in (read, mapped) if (found := sample_cost([[r]], 0))] == [100.0, 400.0]


def test_bytes_are_not_known_where_one_rank_did_not_count_them() -> None:
    found = sample_cost([[cost(9, 10, 1, 50, 50)], [cost(9, 10, 1, None, None)]], 0)
    assert found is not None
    assert found.read_bytes is None


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


def test_kernels_are_counted_in_the_windows_that_have_them(tmp_path: Path) -> None:
    window = WindowRow(50, 2, 100, 80, 10, 30)
    attempt = one_rank(tmp_path, window, replace(window, kernels=34), replace(window, kernels=None))
    assert kernels_per_step(attempt) == 16
    assert kernels_per_step(one_rank(tmp_path / "cpu")) is None


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


def test_a_job_that_only_trains_has_none() -> None:
    assert habits_of(rank_of(rows_of())) == {}


def test_what_happens_between_steps_recurs() -> None:
    spans = [*in_steps("checkpoint", [10, 20, 30]), *in_steps("evaluation", [25], ms=8)]
    rows = rows_of(flagged(Flag.CHECKPOINT, [10, 20, 30]) | flagged(Flag.EVALUATION, [25]))
    found = habits_of(rank_of(rows, spans))
    assert found == {"checkpoint": RecurringWork(0.004, 10), "evaluation": RecurringWork(0.008, 25)}


def test_what_happens_at_the_ends_only_is_known_once() -> None:
    spans = [("evaluation", 100.0, 140.0), ("checkpoint", START_MS + 420.0, START_MS + 440.0)]
    found = habits_of(rank_of(rows_of(), spans))
    assert found == {"evaluation": RecurringWork(0.04, None), "checkpoint": RecurringWork(0.02, None)}


def test_the_one_at_the_end_does_not_tell_how_often() -> None:
    spans = [*in_steps("evaluation", [30]), ("evaluation", START_MS + 410.0, START_MS + 414.0)]
    assert habits_of(rank_of(rows_of(flagged(Flag.EVALUATION, [30])), spans)) == {
        "evaluation": RecurringWork(0.004, 30)
    }


def test_an_evaluation_in_most_steps_is_part_of_the_mean_step() -> None:
    spans = in_steps("evaluation", range(40))
    assert habits_of(rank_of(rows_of(flagged(Flag.EVALUATION, range(40))), spans)) == {}


@pytest.mark.parametrize(("epochs", "every"), [([0], None), ([0, 15, 30], 15)])
def test_epochs(epochs: list[int], every: float | None) -> None:
    rows = rows_of({step: (int(Flag.EPOCH_START), {"data_ms": 61}) for step in epochs})
    assert habits_of(rank_of(rows)) == {"epoch_start": RecurringWork(0.06, every)}


def test_an_older_run_tells_of_epochs_only() -> None:
    rows = rows_of(flagged(Flag.EVALUATION, [10]) | flagged(Flag.EPOCH_START, [0]))
    assert set(habits_of(rank_of(rows, head=header()))) == {"epoch_start"}
