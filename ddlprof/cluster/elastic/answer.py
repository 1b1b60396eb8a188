"""What each of several jobs should get now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddlprof.cluster.elastic.choices import Choices, all_batches
from ddlprof.cluster.elastic.efficiency import Effective, base_batch, efficiency
from ddlprof.cluster.elastic.programme import share_out
from ddlprof.cluster.jobs import Job
from ddlprof.cluster.machines import Cluster
from ddlprof.cluster.predicted import GpuShare, part_of
from ddlprof.cluster.speeds import Speeds, StepTime


@dataclass(frozen=True)
class Share:
    """What one job gets."""

    job: Job
    gpus: int
    """0: it waits."""
    batch: int | None = None
    """This and the rest: None where it waits."""
    part: GpuShare | None = None
    """The part of one GPU."""
    speed_up: float | None = None
    """How much faster it is than on one GPU, both with their best batches."""
    step: StepTime | None = None
    """One update as predicted, nothing charged."""
    efficiency: float | None = None
    """What a sample is worth beside one of the smallest batch; None: not charged for."""

    @property
    def samples_per_s(self) -> tuple[float, float, float] | None:
        """As predicted, with the ends of its 80 % interval."""
        if self.step is None or self.batch is None:
            return None
        return self.batch / self.step.step_s, self.batch / self.step.high_s, self.batch / self.step.low_s


def shares(
    jobs: Sequence[Job],
    cluster: Cluster,
    speeds: Speeds,
    noise_scales: Mapping[str, float],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Share]:
    """The largest sum of speed-ups. `noise_scales` by job_id: these jobs are charged for large batches.

    `progress` is told how many jobs are looked through. Raises `DdlprofError` for a job that cannot be predicted.
    """
    choices = Choices(cluster, Effective(speeds, noise_scales), all_batches)
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
        worth = None if noise_scale is None else efficiency(choice.batch, base_batch(job), noise_scale)
        step = speeds.step(job, cluster.packed(gpus, cluster.gpu_models[0]), choice.batch)
        part = part_of(choice.batch, gpus, job.max_batch_per_gpu)
        found.append(Share(job, gpus, choice.batch, part, float(factors[row, gpus - 1]), step, worth))
    return found
