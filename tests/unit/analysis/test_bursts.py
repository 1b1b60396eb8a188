"""Waits for data in bursts, and waits that are not."""

from __future__ import annotations

import numpy as np
import pytest

from ddlprof.analysis.bursts import find_bursts
from ddlprof.analysis.rules.input import _in_bursts
from tests.golden.runs import MS
from tests.unit.analysis.rules.made_up import facts

RANDOM = np.random.default_rng(3)
AHEAD = 4


def test_bursts_are_counted_with_what_they_take() -> None:
    data = np.full(80, MS // 10)
    data[[20, 21, 40, 60, 62]] = 50 * MS
    bursts = find_bursts(data, AHEAD)
    assert bursts is not None
    assert (bursts.number, bursts.longest_s, bursts.steps) == (3, 0.1, 80)
    assert bursts.calm_share == pytest.approx((20 + 18 + 19 + 17) / 80)
    assert bursts.calm_wait_share < 0.05
    assert _in_bursts(facts(bursts=bursts))


@pytest.mark.parametrize(
    "data",
    [
        np.full(80, 20 * MS),
        np.tile([0, 40 * MS], 40),
        np.tile([60 * MS, 0, 0], 27),
        RANDOM.normal(20, 4, 80) * MS,
        RANDOM.exponential(20, 80) * MS,
        RANDOM.lognormal(2, 1, 80) * MS,
        np.where(np.arange(80) < 40, 0, 20) * MS,
    ],
    ids=["even", "two workers", "three workers", "noise", "exponential", "lognormal", "from half time on"],
)
def test_a_loader_that_is_too_slow_waits_otherwise(data: np.ndarray) -> None:
    bursts = find_bursts(np.asarray(data, dtype=np.int64), AHEAD)
    assert bursts is None or not _in_bursts(facts(bursts=bursts))


def test_nothing_waited_for_is_no_burst() -> None:
    assert find_bursts(np.zeros(40, dtype=np.int64), AHEAD) is None
    assert find_bursts(np.zeros(0, dtype=np.int64), AHEAD) is None
