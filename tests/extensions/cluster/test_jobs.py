"""Forecasts: the same for a job whatever else is asked, and as often and as wrong as asked for."""

import math
import statistics

import pytest

from ddlprof.extensions.cluster.jobs import Job, forecasts

JOBS = [Job(f"job-{n}", 0.0, 1, 1000.0 * (n + 1), 8) for n in range(2000)]


def test_a_forecast_depends_on_seed_and_job_only() -> None:
    expect = forecasts(0.5, 0.25, seed=3)
    backwards = {job.job_id: expect(job) for job in reversed(JOBS)}
    again = forecasts(0.5, 0.25, seed=3)
    assert [again(job) for job in JOBS] == [backwards[job.job_id] for job in JOBS]
    other = forecasts(0.5, 0.25, seed=4)
    assert [other(job) for job in JOBS] != [again(job) for job in JOBS]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_the_share_of_predictable_jobs(share: float) -> None:
    known = [forecasts(share, 0.25, seed=1)(job) is not None for job in JOBS]
    assert sum(known) / len(known) == pytest.approx(share, abs=0.04 if 0 < share < 1 else 0)


def test_the_error_is_lognormal_around_the_truth() -> None:
    expect = forecasts(1.0, 0.25, seed=7)
    logs = [math.log((expect(job) or 0.0) / job.samples) for job in JOBS]
    assert statistics.fmean(logs) == pytest.approx(0.0, abs=0.02)
    assert statistics.stdev(logs) == pytest.approx(0.25, rel=0.05)
    assert all(forecasts(1.0, 0.0, seed=7)(job) == job.samples for job in JOBS)


def test_more_predictable_jobs_leave_the_others_as_they_were() -> None:
    some, more = forecasts(0.25, 0.25, seed=1), forecasts(0.5, 0.25, seed=1)
    assert all(more(job) == some(job) for job in JOBS if some(job) is not None)
