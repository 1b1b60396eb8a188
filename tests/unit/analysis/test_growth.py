"""Memory that grows all the time, and memory that does not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ddlprof.analysis.growth import steady_growth

MIB = 2.0**20
STEP = np.arange(60.0)
RANDOM = np.random.default_rng(7)


def test_a_leak_is_found_with_its_slope() -> None:
    held = 500 * MIB + 2 * MIB * STEP + RANDOM.normal(0, 2 * MIB, 60)
    slope = steady_growth(STEP, held)
    assert slope is not None
    assert slope == pytest.approx(2 * MIB, rel=0.1)


def test_uneven_readings_and_readings_that_are_missing_do_not_matter() -> None:
    step = np.cumsum(RANDOM.integers(1, 30, 60)).astype(float)
    held = 500 * MIB + MIB * step
    held[::7] = np.nan
    assert steady_growth(step, held) == pytest.approx(MIB)


@pytest.mark.parametrize(
    "held",
    [
        np.full(60, 900 * MIB),
        900 * MIB + RANDOM.normal(0, 20 * MIB, 60),
        500 * MIB + 300 * MIB * (1 - np.exp(-STEP / 15)),
        500 * MIB + 60 * MIB * np.log(1 + STEP),
        np.maximum.accumulate(500 * MIB + RANDOM.normal(0, 40 * MIB, 60)),
        500 * MIB + MIB * np.minimum(STEP, 30) * 4,
        500 * MIB + np.where(STEP > 30, 200 * MIB, 0),
        500 * MIB + 40 * MIB * np.sin(STEP / 3),
        900 * MIB - 4 * MIB * STEP,
        500 * MIB + 0.2 * MIB * STEP,
    ],
    ids=["flat", "noise", "plateau", "logarithm", "records", "filled", "a jump", "waves", "shrinking", "little"],
)
def test_other_memory_is_no_leak(held: NDArray[np.float64]) -> None:
    assert steady_growth(STEP, held) is None


def test_few_readings_say_nothing() -> None:
    assert steady_growth(STEP[:11], 500 * MIB + 20 * MIB * STEP[:11]) is None
    assert steady_growth(STEP[:12], 500 * MIB + 20 * MIB * STEP[:12]) is not None
    assert steady_growth(np.zeros(0), np.zeros(0)) is None
    assert steady_growth(np.zeros(20), 500 * MIB + 20 * MIB * np.arange(20.0)) is None


def test_random_walks_are_seldom_called_leaks() -> None:
    called = sum(
        steady_growth(STEP, 4000 * MIB + np.cumsum(RANDOM.normal(0, 10 * MIB, 60))) is not None for _ in range(300)
    )
    assert called <= 3
