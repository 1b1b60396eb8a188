"""What a sample costs to load, and the counts of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddlprof.analysis.features import SampleCost, kernels_per_step, loader_cost, reductions_per_step, sample_cost
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.model.records import LoaderCost, WindowRow
from ddlprof.store import load_run
from tests.golden.runs import HERE, MS, Record, header, step, write_rank


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
