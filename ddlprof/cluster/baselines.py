"""Elastic scaling over time, beside fixed batches and a queue."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddlprof.cluster.elastic.efficiency import Effective
from ddlprof.cluster.jobs import Job
from ddlprof.cluster.machines import Cluster
from ddlprof.cluster.policies.elastic import Elastic, FixedMax, FixedMin, FixedRandom
from ddlprof.cluster.policies.fifo import Fifo
from ddlprof.cluster.policy import Policy
from ddlprof.cluster.simulation.core import simulate
from ddlprof.cluster.speeds import Speeds


@dataclass(frozen=True)
class Course:
    """What a policy made of the jobs over time."""

    policy: str
    mean_completion_s: float
    p95_completion_s: float
    makespan_s: float
    ended: int
    """Jobs that had ended when the last one was submitted."""
    restarts: int


def courses(
    jobs: Sequence[Job], cluster: Cluster, speeds: Speeds, noise_scales: Mapping[str, float], seed: int
) -> list[Course]:
    """Elastic scaling beside fixed batches and a queue, each to the end of all jobs."""
    policies: dict[str, Policy] = {
        "elastic": Elastic(),
        "fixed-max": FixedMax(),
        "fixed-random": FixedRandom(seed=seed),
        "fixed-min": FixedMin(),
        "fifo": Fifo(),
    }
    charged = Effective(speeds, noise_scales)
    return [_course(name, jobs, cluster, policy, charged) for name, policy in policies.items()]


def _course(name: str, jobs: Sequence[Job], cluster: Cluster, policy: Policy, speeds: Speeds) -> Course:
    outcomes = simulate(jobs, cluster, policy, speeds).outcomes
    completion_s = sorted(outcome.completion_s for outcome in outcomes)
    submitted_s = [job.submit_s for job in jobs]
    return Course(
        policy=name,
        mean_completion_s=statistics.fmean(completion_s),
        p95_completion_s=completion_s[-(-95 * len(completion_s) // 100) - 1],
        makespan_s=max(outcome.end_s for outcome in outcomes) - min(submitted_s),
        ended=sum(outcome.end_s <= max(submitted_s) for outcome in outcomes),
        restarts=sum(outcome.starts - 1 for outcome in outcomes),
    )
