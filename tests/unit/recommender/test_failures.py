"""Formulas for jobs that are interrupted, beside simulations of the same job."""

from __future__ import annotations

import math
from itertools import islice
from statistics import fmean, pstdev, quantiles

import pytest

from ddlprof.recommender.failures import completion, daly_interval_s, expected_interruptions, young_interval_s
from scripts.lab.interruptions import poisson, simulated_s

HOUR = 3600.0


def simulations(work: float, every: float, save: float, restart: float, per_s: float, times: int) -> list[float]:
    return [simulated_s(work, every, save, restart, poisson(per_s, seed)) for seed in range(times)]


def test_intervals_of_the_papers() -> None:
    assert young_interval_s(300, 24 * HOUR) == pytest.approx(math.sqrt(2 * 300 * 24 * HOUR))
    # Daly's next terms change little where failures are rare, and more where a checkpoint costs much of the time.
    assert daly_interval_s(1, 1e9) == pytest.approx(young_interval_s(1, 1e9), rel=1e-4)
    assert daly_interval_s(300, 24 * HOUR) == pytest.approx(7200 * (1 + 0.04167 / 3 + 0.001736 / 9) - 300, rel=1e-4)
    assert daly_interval_s(500, 200) == 200
    # The figures 3 to 5 of Daly's paper: a checkpoint of 5 minutes with a failure every 24 h, 6 h and 15 min.
    found = [daly_interval_s(300, mtbf_h * HOUR) / 60 for mtbf_h in (24, 6, 0.25)]
    assert found == [pytest.approx(117, abs=0.5), pytest.approx(57, abs=0.5), pytest.approx(9.1, abs=0.05)]


@pytest.mark.parametrize("save_s", [5, 60, 600])
@pytest.mark.parametrize("mtbf_h", [0.5, 3, 24])
def test_no_other_interval_is_much_better(save_s: float, mtbf_h: float) -> None:
    mtbf_s = mtbf_h * HOUR
    best = completion(400 * HOUR, daly_interval_s(save_s, mtbf_s), save_s, 200, 1 / mtbf_s).mean_s
    others = [
        completion(400 * HOUR, factor * young_interval_s(save_s, mtbf_s), save_s, 200, 1 / mtbf_s).mean_s
        for factor in (0.25, 0.5, 0.7, 0.9, 1.1, 1.4, 2, 4)
    ]
    assert best <= 1.005 * min(others)


def test_without_interruptions_only_checkpoints_are_added() -> None:
    found = completion(1000, 300, 10, 60, 0)
    assert (found.mean_s, found.deviation_s, found.lost_s) == (1030, 0, 0)
    assert found.quantile_s(0.9) == 1030
    assert completion(900, 300, 10, 60, 0).least_s == 920  # the last stretch ends the job: it is not saved


def test_a_job_that_cannot_end() -> None:
    assert completion(1e6, 1e6, 0, 0, 1.0).mean_s == math.inf
    # A restart of three minutes with an interruption each second would take more than all time there was.
    assert completion(180, 1, 1, 180, 1.0).mean_s == math.inf


CASES = [
    (40 * HOUR, 1200.0, 30.0, 240.0, 1 / (2 * HOUR)),
    (10 * HOUR, 1800.0, 60.0, 600.0, 1 / HOUR),
    (100 * HOUR, 3 * HOUR, 300.0, 900.0, 1 / (30 * HOUR)),
    (5 * HOUR, 600.0, 5.0, 60.0, 1 / (20 * HOUR)),
]


@pytest.mark.parametrize("case", CASES)
def test_mean_and_spread_are_those_of_a_simulation(case: tuple[float, float, float, float, float]) -> None:
    found, seen = completion(*case), simulations(*case, times=1500)
    assert found.mean_s == pytest.approx(fmean(seen), rel=0.02)
    assert found.deviation_s == pytest.approx(pstdev(seen), rel=0.15)
    tenths = quantiles(seen, n=10)
    assert found.quantile_s(0.9) == pytest.approx(tenths[8], rel=0.05)
    assert found.quantile_s(0.1) == pytest.approx(tenths[0], rel=0.05)


def test_the_number_of_interruptions() -> None:
    work, every, save, restart, per_s = CASES[0]
    found = completion(work, every, save, restart, per_s)
    counts = []
    for seed in range(500):
        end = simulated_s(work, every, save, restart, poisson(per_s, seed))
        counts.append(sum(moment < end for moment in islice(poisson(per_s, seed), 1000)))
    assert expected_interruptions(found, per_s) == pytest.approx(fmean(counts), rel=0.03)
