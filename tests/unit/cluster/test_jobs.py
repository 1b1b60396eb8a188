"""Forecasts: the same for a job whatever else is asked, and as often and as wrong as asked for."""

import pytest

from ddlprof.cluster.jobs import Job, forecasts

JOBS = [Job(f"job-{n}", 0.0, 1, 1000.0 * (n + 1), 8) for n in range(2000)]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_the_share_of_predictable_jobs(share: float) -> None:
    known = [forecasts(share, 0.25, seed=1)(job)[0] is not None for job in JOBS]
    assert sum(known) / len(known) == pytest.approx(share, abs=0.04 if 0 < share < 1 else 0)
