"""Corrections from residuals: pulled to the shipped prediction, and bounded outside of what was seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ddlprof.recommender import Coefficients
from ddlprof.recommender.learning.cases import Cell, ComputePoint, fits_of
from ddlprof.recommender.learning.fit import compute_corrections, link_correction
from tests.unit.recommender.learning.teams import job

T4, V100 = Cell("T4", "fp32", "flops"), Cell("V100", "fp32", "flops")


def point(cell: Cell, log_ratio: float, step: float = 0.0) -> ComputePoint:
    return ComputePoint(cell, np.array([step, 3.0, 0.1]), log_ratio)


def factor(points: list[ComputePoint], jobs: list[int], cell: Cell = T4) -> float:
    found = next(row for row in compute_corrections(points, jobs) if row.gpu_model == cell.gpu_model)
    return found.at(np.array([0.0, 3.0, 0.1]))


def test_gpus_have_factors_of_their_own() -> None:
    points = [point(T4, 0.5), point(V100, -0.5)] * 8
    jobs = [number // 2 for number in range(16)]
    assert factor(points, jobs, T4) > 0.3
    assert factor(points, jobs, V100) < -0.3


def test_links_without_deviations_keep_their_prior() -> None:
    fits = [fits_of(job(number, gpus=4), Coefficients.shipped())["T4", "pcie"] for number in range(4)]
    found = link_correction(("T4", "pcie"), fits)
    shipped = fits[0].prior
    assert (found.most_gpus, found.most_nodes, found.jobs) == (4, 1, 4)
    assert found.shift[1] == pytest.approx(0.0, abs=1e-3)  # between machines, where nothing was measured
    assert all(math.isfinite(number) for number in found.shift)
    assert all(0 < new < 2 * old for new, old in zip(found.sd, shipped.sd, strict=True))
