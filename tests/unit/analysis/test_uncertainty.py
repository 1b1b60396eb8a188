"""The error of a mean of steps that resemble their neighbours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ddlprof.analysis.uncertainty import mean_error, t_quantile, typical

Series = NDArray[np.float64]


def test_quantiles_are_those_of_student() -> None:
    """Of the table in any textbook: two-sided, 5 %, and the normal distribution for infinitely many."""
    found = [t_quantile(0.05, freedom) for freedom in (1.0, 8.0, 100.0, float("inf"))]
    assert found == pytest.approx([12.7062, 2.3060, 1.9840, 1.9600], rel=1e-4)


def autoregressive(random: np.random.Generator, count: int, memory: float) -> Series:
    noise = random.normal(size=count + 100)
    values = np.zeros(count + 100)
    for number in range(1, count + 100):
        values[number] = memory * values[number - 1] + noise[number]
    return values[100:]


def bursts(random: np.random.Generator, count: int, workers: int) -> Series:
    """A loader with so many workers: one step in `workers` waits for all of them."""
    waits = (np.arange(count) + random.integers(workers)) % workers == 0
    return np.asarray(waits * workers * (1 + 0.1 * random.normal(size=count)) + 0.1 * random.normal(size=count))


def covered(make: Callable[[np.random.Generator], Series], mean: float, pairs: int = 400) -> float:
    """How often the interval of 95 % holds the true mean."""
    random = np.random.default_rng(7)
    inside = 0
    for _ in range(pairs):
        values = make(random)
        variance, freedom = mean_error(values)
        inside += abs(values.mean() - mean) <= t_quantile(0.05, freedom) * variance**0.5
    return inside / pairs


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_intervals_hold_where_steps_resemble_their_neighbours(memory: float) -> None:
    """The textbook's interval holds the mean in 34 of 100 series at 0.9."""
    assert 0.91 <= covered(lambda random: autoregressive(random, 500, memory), 0.0) <= 0.985


@pytest.mark.parametrize("workers", [2, 4, 7])
def test_bursts_of_a_loader_make_no_wide_interval(workers: int) -> None:
    """They alternate, so their mean is known much better than from as many independent steps."""
    assert covered(lambda random: bursts(random, 504, workers), 1.0) >= 0.93
    values = bursts(np.random.default_rng(1), 504, workers)
    assert mean_error(values)[0] < 0.25 * values.var() / len(values)


def test_a_drift_is_seen() -> None:
    random = np.random.default_rng(2)
    steps = np.arange(500)
    drifting = 10 + 0.002 * steps + 0.1 * random.normal(size=500)
    assert mean_error(drifting)[0] > 20 * drifting.var() / 500


def test_a_constant_series_has_no_error() -> None:
    assert mean_error(np.full(100, 7.0))[0] == pytest.approx(0, abs=1e-20)


def test_the_typical_step_needs_batches() -> None:
    assert typical(np.ones(79)) is None
    assert typical(np.ones(80)) is not None
