"""Shortest remaining time first, on jobs small enough to follow by hand."""

from __future__ import annotations

import pytest

from ddlprof.extensions.cluster.jobs import Job, JobOutcome, JobState, exactly
from ddlprof.extensions.cluster.machines import Allocation, Cluster, Placement, parse_cluster
from ddlprof.extensions.cluster.policies.fifo import Fifo
from ddlprof.extensions.cluster.policies.srtf import Srtf
from ddlprof.extensions.cluster.simulation.core import simulate
from ddlprof.extensions.cluster.speeds import Speeds, StepTime
from scripts.lab.as_measured import AsMeasured


def job(name: str, submit_s: float, gpus: int, duration_s: float) -> Job:
    return Job(name, submit_s, gpus, samples=duration_s, batch=1, step_s=1.0)


def outcomes(
    jobs: list[Job], cluster: Cluster, speeds: Speeds | None = None, known: bool = True
) -> dict[str, JobOutcome]:
    expect = exactly if known else lambda job: None
    simulated = simulate(jobs, cluster, Srtf(), speeds or AsMeasured(), restart_s=0.0, expect=expect)
    return {outcome.job.job_id: outcome for outcome in simulated.outcomes}


def test_only_those_that_have_to_go_are_stopped() -> None:
    jobs = [job("a", 0, 2, 100), job("b", 0, 2, 50), job("c", 10, 2, 20)]
    found = outcomes(jobs, parse_cluster("1x4"))
    assert {name: outcome.starts for name, outcome in found.items()} == {"a": 2, "b": 1, "c": 1}


def test_ties_go_to_the_order_of_the_trace_and_not_to_who_started_last() -> None:
    """Two alike are stopped for one after the other; whoever comes first in the trace goes on first."""
    cluster = parse_cluster("1x4")
    first, second = (
        JobState(job(name, 0, 4, 100), 0.0, allocation=None, expected_samples=100.0) for name in ("z", "a")
    )
    srtf = Srtf()
    assert set(srtf.decide(0.0, [first, second], [], cluster, AsMeasured()).allocations) == {"z"}
    second.allocation, second.samples_per_s = Allocation(((0, 4),)), 1.0
    assert set(srtf.decide(0.0, [first], [second], cluster, AsMeasured()).allocations) == {"z"}


def test_what_differs_by_rounding_is_a_tie() -> None:
    """1.1 + 2.2 is more than 3.3 to a computer."""
    first, second = (
        JobState(job(name, 0, 4, seconds), 0.0, allocation=None, expected_samples=seconds)
        for name, seconds in (("first", 1.1 + 2.2), ("second", 3.3))
    )
    assert set(Srtf().decide(0.0, [first, second], [], parse_cluster("1x4"), AsMeasured()).allocations) == {"first"}


def test_without_foresight_it_is_the_order_of_submission() -> None:
    jobs = [job("a", 0, 4, 100), job("b", 1, 4, 20), job("c", 2, 4, 5)]
    found = outcomes(jobs, parse_cluster("1x4"), known=False)
    fifo = simulate(jobs, parse_cluster("1x4"), Fifo(), AsMeasured(), restart_s=0.0)
    assert {name: outcome.end_s for name, outcome in found.items()} == {
        outcome.job.job_id: outcome.end_s for outcome in fifo.outcomes
    }


def test_the_fastest_gpus_are_taken_first() -> None:
    class TwiceAsFast(AsMeasured):
        def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
            step_s = 1.0 if placement.gpu_models == ("V100",) else 2.0
            return StepTime(step_s, step_s, step_s)

    jobs = [job("a", 0, 4, 100), job("b", 0, 4, 100)]
    found = outcomes(jobs, parse_cluster("1x4:T4,1x4:V100"), TwiceAsFast())
    assert {name: outcome.end_s for name, outcome in found.items()} == {"a": 100, "b": 200}
    with_one = outcomes([job("a", 0, 6, 100)], parse_cluster("1x4:V100,2x4:T4"), TwiceAsFast())
    assert with_one["a"].end_s == pytest.approx(200), "six GPUs of one model there are only of the slower one"
