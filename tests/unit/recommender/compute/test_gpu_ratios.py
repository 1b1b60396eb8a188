"""Ratios of step times between GPUs, and how they are merged with the other estimate."""

from __future__ import annotations

import math

import pytest

from ddlprof.recommender.compute.gpu_ratios import Series, merged
from ddlprof.recommender.compute.micro_batch import shipped


@pytest.mark.parametrize("sds", [(0.1, 0.1), (0.1, 0.3), (0.05, 1.0), (0.4, 0.2)])
def test_two_estimates_are_never_less_certain_than_the_better_one(sds: tuple[float, float]) -> None:
    one, other = (0.0, sds[0]), (1.0, sds[1])
    mean, sd = merged(one, other)
    assert sd <= min(sds) + 1e-12
    assert 0.0 <= mean <= 1.0
    assert merged(other, one) == pytest.approx((mean, sd))
    assert abs(mean - (0.0 if sds[0] < sds[1] else 1.0)) <= 0.5


def test_only_fitted_pairs_and_measured_batches_have_a_ratio() -> None:
    pairs, series = shipped().pairs, Series((32, 64), (0.1, 0.19))
    found = pairs.log_s("T4", "V100-SXM2-16GB", series, 64, 161)
    assert found is not None
    assert 0.03 < math.exp(found[0]) < 0.15
    assert pairs.log_s("T4", "V100-SXM2-16GB", series, 48, 161) is None
    assert pairs.log_s("T4", "H100-SXM5-80GB", series, 64, 161) is None


def test_a_step_outside_of_the_fit_has_no_ratio() -> None:
    assert shipped().pairs.log_s("T4", "V100-SXM2-16GB", Series((64,), (50.0,)), 64, 161) is None
