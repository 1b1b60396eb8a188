"""What `ddlprof elastic` advises: the GPUs and the batch that each job should get now, and elastic scaling over time
compared with fixed batches and a queue.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddlprof.extensions.cluster.elastic.scaling import (
    Choices,
    GoodputSpeeds,
    all_batches,
    base_batch,
    share_out,
    statistical_efficiency,
)
from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import Cluster
from ddlprof.extensions.cluster.policies.elastic import Elastic, FixedMax, FixedMin, FixedRandom
from ddlprof.extensions.cluster.policies.fifo import Fifo
from ddlprof.extensions.cluster.policy import Policy
from ddlprof.extensions.cluster.simulation.core import simulate
from ddlprof.extensions.cluster.speeds import GpuShare, Speeds, StepTime, part_of


class Speed(NamedTuple):
    """Samples a second, with the ends of their 80 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Share:
    """The GPUs and the batch of one job."""

    job: Job
    gpus: int
    """0: the job waits."""
    batch: int | None = None
    """This and the fields below are None while the job waits."""
    part: GpuShare | None = None
    """The part of the batch that one GPU computes, or all those together that hold one copy of the model."""
    speed_up: float | None = None
    """How much faster it is than on one GPU, both with their best batches."""
    step: StepTime | None = None
    """One update as predicted, without a charge for large batches."""
    efficiency: float | None = None
    """Its statistical efficiency relative to the smallest batch; None: large batches are not charged for."""

    @property
    def samples_per_s(self) -> Speed | None:
        """The predicted throughput."""
        if self.step is None or self.batch is None:
            return None
        return Speed(self.batch / self.step.step_s, self.batch / self.step.high_s, self.batch / self.step.low_s)

    @property
    def effective_samples_per_s(self) -> float | None:
        """The same in samples of the smallest batch."""
        speed = self.samples_per_s
        return None if speed is None or self.efficiency is None else speed.mean * self.efficiency


def shares(
    jobs: Sequence[Job],
    cluster: Cluster,
    speeds: Speeds,
    noise_scales: Mapping[str, float],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Share]:
    """The shares with the largest sum of speed-ups. Jobs with a noise scale (by job_id) are charged for large batches.

    `progress` is called with the number of jobs done and of all. Raises `DdlprofError` for a job that cannot be
    predicted.
    """
    choices = Choices(cluster, GoodputSpeeds(speeds, noise_scales), all_batches)
    for number, job in enumerate(jobs):
        choices.of(job)
        progress(number, len(jobs))
    factors = choices.factors(jobs)
    found = []
    for row, (job, gpus) in enumerate(zip(jobs, share_out(factors, cluster.gpus), strict=True)):
        choice = choices.of(job)[gpus - 1] if gpus else None
        if choice is None:
            found.append(Share(job, 0))
            continue
        noise_scale = noise_scales.get(job.job_id)
        worth = None if noise_scale is None else statistical_efficiency(choice.batch, base_batch(job), noise_scale)
        step = speeds.step(job, cluster.packed(gpus, cluster.gpu_models[0]), choice.batch)
        part = part_of(choice.batch, gpus // job.copy_gpus, job.max_batch_per_gpu)
        found.append(Share(job, gpus, choice.batch, part, float(factors[row, gpus - 1]), step, worth))
    return found


@dataclass(frozen=True)
class PolicyOutcome:
    """How the jobs fare over time under a policy."""

    policy: str
    mean_completion_s: float
    p95_completion_s: float
    makespan_s: float
    ended: int
    """The jobs that had ended when the last one was submitted."""
    restarts: int


def policy_outcomes(
    jobs: Sequence[Job], cluster: Cluster, speeds: Speeds, noise_scales: Mapping[str, float], seed: int
) -> list[PolicyOutcome]:
    """Simulates elastic scaling, fixed batches and a queue, each to the end of all jobs."""
    policies: dict[str, Policy] = {
        "elastic": Elastic(),
        "fixed-max": FixedMax(),
        "fixed-random": FixedRandom(seed=seed),
        "fixed-min": FixedMin(),
        "fifo": Fifo(),
    }
    charged = GoodputSpeeds(speeds, noise_scales)
    return [_policy_outcome(name, jobs, cluster, policy, charged) for name, policy in policies.items()]


def _policy_outcome(name: str, jobs: Sequence[Job], cluster: Cluster, policy: Policy, speeds: Speeds) -> PolicyOutcome:
    outcomes = simulate(jobs, cluster, policy, speeds).outcomes
    completion_s = sorted(outcome.completion_s for outcome in outcomes)
    submitted_s = [job.submit_s for job in jobs]
    return PolicyOutcome(
        policy=name,
        mean_completion_s=statistics.fmean(completion_s),
        p95_completion_s=completion_s[-(-95 * len(completion_s) // 100) - 1],
        makespan_s=max(outcome.end_s for outcome in outcomes) - min(submitted_s),
        ended=sum(outcome.end_s <= max(submitted_s) for outcome in outcomes),
        restarts=sum(outcome.starts - 1 for outcome in outcomes),
    )
