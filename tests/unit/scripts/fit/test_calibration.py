"""Calibration of 80 % intervals on groups whose errors go together, on made-up errors."""

from __future__ import annotations

import numpy as np
import pytest

from ddlprof.recommender.estimate import Z80
from scripts.fit.calibration import Residuals, calibrate, calibrate_reach, covered

POINTS = 60


def groups(count: int, seed: int, far: float = 0.0) -> list[Residuals]:
    """Groups with an error in common and one of each point; `far`: what a doubling of nodes adds to the common one."""
    random = np.random.default_rng(seed)
    nodes = np.repeat([3, 4], POINTS // 2)
    rows = []
    for _ in range(count):
        error = random.normal(0.0, 0.1) + random.normal(0.0, 0.05, POINTS)
        error += far * random.normal() * np.log2(nodes / 2)
        rows.append(
            Residuals("made up", "job", "few", error, np.full(POINTS, 0.1), np.ones(POINTS), nodes, fitted_nodes=2)
        )
    return rows


def sds(rows: list[Residuals], widen: float, floor: float, reach: float = 0.0) -> list[np.ndarray]:
    near = np.hypot(widen * 0.1, floor)
    return [np.hypot(np.hypot(near, reach * np.log2(row.nodes / 2)), 0.03) for row in rows]


def test_intervals_calibrated_on_some_groups_hold_for_others() -> None:
    widen, floor = calibrate(groups(40, seed=1))
    others = groups(200, seed=2)
    assert 0.75 <= covered(others, sds(others, widen, floor)) <= 0.9


def test_few_groups_count_as_much_as_their_points_do_not() -> None:
    """A group with a thousand times the points does not drown the others."""
    rows = groups(5, seed=3)
    long = Residuals(
        "made up", "job", "few", np.zeros(100 * POINTS), np.full(100 * POINTS, 0.1), np.ones(100 * POINTS),
        np.full(100 * POINTS, 3), fitted_nodes=2,
    )  # fmt: skip
    widen, floor = calibrate([*rows, long])
    assert covered(rows, sds(rows, widen, floor)) > 0.7


@pytest.mark.parametrize("far", [0.0, 0.3])
def test_intervals_reach_as_far_as_errors_grow(far: float) -> None:
    widen, floor = calibrate(groups(60, seed=4))
    reach = calibrate_reach(groups(60, seed=5, far=far), widen, floor)
    others = groups(200, seed=6, far=far)
    held = [row.of_nodes(nodes) for row in others for nodes in (3, 4)]
    assert (reach > 0.1) == (far > 0)
    assert 0.72 <= covered(held, sds(held, widen, floor, reach)) <= 0.92


def test_errors_that_no_interval_reaches_are_an_error() -> None:
    far_off = [Residuals("made up", "job", "few", np.full(4, 100.0), np.full(4, 0.1), np.ones(4), np.full(4, 3), 2)]
    with pytest.raises(ValueError, match="of made up holds 82%"):
        calibrate(far_off)
    with pytest.raises(ValueError, match="no reach up to 1"):
        calibrate_reach(far_off, 1.0, 0.1)


def test_coverage_is_that_of_groups() -> None:
    row = groups(1, seed=7)[0]
    sd = np.full(POINTS, 0.1)
    inside = np.mean(np.abs(row.log_error) <= Z80 * 0.1)
    assert covered([row, row], [sd, 0.0 * sd + 9.0]) == pytest.approx((inside + 1.0) / 2)
