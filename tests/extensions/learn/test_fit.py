"""Corrections from residuals: pulled to the shipped prediction, and bounded outside of what was seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ddlprof.extensions.learn.cases import ComputePoint, CorrectionKey, fits_of
from ddlprof.extensions.learn.fit import compute_corrections, link_correction
from ddlprof.recommender import Coefficients
from tests.extensions.learn.teams import job

T4, V100 = CorrectionKey("T4", "fp32", "flops"), CorrectionKey("V100", "fp32", "flops")


def point(cell: CorrectionKey, log_ratio: float, step: float = 0.0) -> ComputePoint:
    return ComputePoint(cell, np.array([step, 3.0, 0.1]), log_ratio)


def factor(points: list[ComputePoint], jobs: list[int], cell: CorrectionKey = T4) -> float:
    found = next(row for row in compute_corrections(points, jobs) if row.gpu_model == cell.gpu_model)
    return found.at(np.array([0.0, 3.0, 0.1]))


def test_more_jobs_move_a_factor_further() -> None:
    moved = [factor([point(T4, 0.6)] * jobs, list(range(jobs))) for jobs in (1, 2, 4, 12)]
    assert moved == sorted(moved)
    assert 0 < moved[0] < 0.6
    assert moved[-1] == pytest.approx(0.6, abs=0.05)


def test_many_steps_of_one_job_count_as_one_job() -> None:
    assert factor([point(T4, 0.6)] * 20, [0] * 20) == pytest.approx(factor([point(T4, 0.6)], [0]))


def test_gpus_have_factors_of_their_own() -> None:
    points = [point(T4, 0.5), point(V100, -0.5)] * 8
    jobs = [number // 2 for number in range(16)]
    assert factor(points, jobs, T4) > 0.3
    assert factor(points, jobs, V100) < -0.3


def test_beyond_what_was_seen_the_factor_stays() -> None:
    points = [point(T4, 0.2 * step, float(step)) for step in range(6)]
    found = compute_corrections(points, list(range(6)))[0]
    assert found.at(np.array([5.0, 3.0, 0.1])) > found.at(np.array([0.0, 3.0, 0.1]))
    assert found.at(np.array([50.0, 3.0, 0.1])) == found.at(np.array([5.0, 3.0, 0.1]))


def test_no_factor_is_absurd() -> None:
    assert factor([point(T4, 40.0)] * 9, list(range(9))) == pytest.approx(2.0)


def test_links_without_deviations_keep_their_prior() -> None:
    fits = [fits_of(job(number, gpus=4), Coefficients.shipped())["T4", "pcie"] for number in range(4)]
    found = link_correction(("T4", "pcie"), fits)
    shipped = fits[0].prior
    assert (found.most_gpus, found.most_nodes, found.jobs) == (4, 1, 4)
    assert found.shift[1] == pytest.approx(0.0, abs=1e-3)  # between machines, where nothing was measured
    assert all(math.isfinite(number) for number in found.shift)
    assert all(0 < new < 2 * old for new, old in zip(found.sd, shipped.sd, strict=True))
