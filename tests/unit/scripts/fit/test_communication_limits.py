"""The errors and intervals of communication on published placements, each model left out of the fit.

A sample of the points, so that this takes seconds; `scripts.fit.communication` has all of them.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache
from statistics import fmean

import numpy as np
import pytest

from scripts.fit.calibration import residuals_of, shots_of
from scripts.fit.link_groups import fit_group
from scripts.fit.placements import PublishedJob, read_jobs
from tests.unit.scripts.fit.published import PUBLISHED

pytestmark = pytest.mark.skipif(PUBLISHED is None, reason="the published measurements (../shared/data) are not here")
POINTS = 70


def sample(job: PublishedJob) -> PublishedJob:
    """The one-GPU points, those that are given as measured, and some of the others."""
    given = shots_of(job).values()
    kept = [p for p in job.points if sum(p.placement) == 1 or any(shots.have(p) for shots in given)]
    others = [p for p in job.together if p not in kept]
    return replace(job, points=(*kept, *random.Random(job.model).sample(others, POINTS)))


@lru_cache(maxsize=1)
def jobs() -> tuple[PublishedJob, ...]:
    assert PUBLISHED
    return tuple(sample(job) for job in read_jobs(PUBLISHED / "throughput") if job.cluster == "aws")


@lru_cache(maxsize=2)
def errors(nodes: int) -> dict[str, float]:
    """Mean over the models of their median errors, by what is measured; tried on more nodes than the fit has seen."""
    found: dict[str, list[float]] = {}
    for job in jobs():
        seen = [(other.up_to(nodes) if nodes else other) for other in jobs() if other.model != job.model]
        group = fit_group("flow_capped", seen)
        for shots in shots_of(job):
            row = residuals_of(job, shots, group, nodes)
            found.setdefault(shots, []).append(float(np.median(np.abs(np.expm1(row.log_error)))))
    return {shots: fmean(rows) for shots, rows in found.items()}


@pytest.mark.slow
def test_measured_placements_do_not_make_it_worse() -> None:
    found = errors(0)
    assert found["few"] < found["zero"]
    assert found["exposed"] < found["zero"]
    assert max(found["few"], found["exposed"]) < 0.10


@pytest.mark.slow
def test_nodes_that_no_fit_has_seen() -> None:
    found = errors(2)
    assert found["exposed"] < found["zero"]
    assert found["few"] < found["zero"] < 0.25
    assert found["second"] < 0.12
