"""The simulation on jobs small enough to follow by hand."""

from __future__ import annotations

from ddlprof.cluster.jobs import Job
from ddlprof.cluster.machines import parse_cluster
from ddlprof.cluster.policies.fifo import Fifo
from ddlprof.cluster.simulation.core import simulate
from ddlprof.cluster.speeds import AsMeasured


def job(name: str, submit_s: float, gpus: int, duration_s: float) -> Job:
    return Job(name, submit_s, gpus, samples=duration_s, batch=1, step_s=1.0)


def test_nobody_passes_the_oldest() -> None:
    jobs = [job("a", 0, 3, 100), job("b", 10, 4, 50), job("c", 20, 1, 10)]
    simulated = simulate(jobs, parse_cluster("1x4"), Fifo(), AsMeasured())
    ends = {outcome.job.job_id: outcome.end_s for outcome in simulated.outcomes}
    assert ends == {"a": 100, "b": 150, "c": 160}
    assert {outcome.job.job_id: outcome.waited_s for outcome in simulated.outcomes} == {"a": 0, "b": 90, "c": 130}
