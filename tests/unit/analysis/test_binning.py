"""Bins of steps: sums are exact, outliers stay, and nothing that was not measured becomes 0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.analysis.binning import Bins, bin_steps, binned_mean, make_bins
from ddlprof.analysis.summary import RankTimes
from ddlprof.model.classes import CLASSES, COMM_PARTS
from ddlprof.model.records import MISSING, Aggregate


def rank(numbers: list[int], steps_ns: list[int], aggregates: tuple[Aggregate, ...] = (), data: int = 0) -> Any:
    """A rank whose steps are computing, but for `data` nanoseconds of each; MISSING: not measured."""
    step = np.array(steps_ns, dtype=np.int64)
    times = {name: np.zeros(len(step), dtype=np.int64) for name in (*CLASSES, *COMM_PARTS)}
    times |= {"step": step, "data": np.full(len(step), data), "compute": step - max(data, 0)}
    steady = np.ones(len(step), dtype=bool)
    times_of = RankTimes(np.array(numbers, dtype=np.int64), times, steady, aggregates)
    return SimpleNamespace(times=times_of, data=SimpleNamespace(aggregates=aggregates))


def numbers(ranks: list[Any]) -> Any:
    return np.unique(np.concatenate([rank.times.step for rank in ranks]))


def aggregate(first: int, steps: int, step_ns: int) -> Aggregate:
    return Aggregate(first, steps, step_ns, step_ns, 0, None, None, 0, 0, 0, steps, None)


@given(
    st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=80), min_size=1, max_size=4),
    st.integers(1, 30),
)
def test_sums_are_exact_and_extremes_stay(ranks: list[list[int]], most: int) -> None:
    made = [rank(list(range(len(steps))), steps) for steps in ranks]
    bins = make_bins(numbers(made), most)
    binned = bin_steps(made, bins)
    assert len(bins) <= most
    assert binned.steps.sum() == sum(map(len, ranks))
    total = float((binned.mean_ns["step"] * binned.steps).sum())
    assert total == pytest.approx(sum(map(sum, ranks)), rel=1e-9)
    classes = sum(np.nan_to_num(binned.mean_ns[name]) for name in CLASSES)
    assert np.allclose(classes, binned.mean_ns["step"])
    assert binned.longest_ns.max() == max(map(max, ranks))
    assert binned.shortest_ns.min() == min(map(min, ranks))


def test_bins_are_of_neighbours_and_equally_many() -> None:
    bins = make_bins(np.array([0, 1, 2, 5, 6, 7, 9]), 3)
    assert (bins.first.tolist(), bins.last.tolist()) == ([0, 5, 9], [2, 7, 9])
    assert bins.of(np.array([0, 2, 4, 5, 9, 12])).tolist() == [0, 0, 0, 1, 2, 2]


def test_steps_that_are_no_rows_are_in_the_means() -> None:
    made = [rank([0, 4, 8], [10, 10, 10], (aggregate(1, 3, 90), aggregate(5, 3, 30)))]
    binned = bin_steps(made, make_bins(numbers(made), 3))
    assert binned.steps.tolist() == [4, 4, 1]
    assert binned.mean_ns["step"].tolist() == [25, 10, 10]


def test_a_rank_alone() -> None:
    bins = Bins(np.array([0, 2]), np.array([1, 3]))
    one = rank([0, 1, 2], [10, 30, 50])
    mean, longest = binned_mean(one, bins, np.array([10, 30, MISSING]))
    assert mean[0] == 20
    assert longest[0] == 30
    assert np.isnan(mean[1])
    assert np.isnan(longest[1])
