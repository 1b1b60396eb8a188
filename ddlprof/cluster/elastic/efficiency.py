"""What large batches cost: the share of their samples that advances the training as much as those of a small batch.

From Pollux (Qiao et al., OSDI 2021, equation 6), after McCandlish et al., An Empirical Model of Large-Batch Training,
2018: with the noise of the gradient between samples, every sample of a batch of b is worth (n + b0) / (n + b) of a
sample at the batch b0, n being the gradient noise scale in samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ddlprof.cluster.jobs import Job
from ddlprof.cluster.machines import Spread
from ddlprof.cluster.speeds import Speeds, StepTime


def efficiency(batch: float, base_batch: float, noise_scale: float) -> float:
    """What a sample of a larger batch is worth, 1 at `base_batch` samples; smaller batches gain as large ones lose."""
    return (noise_scale + base_batch) / (noise_scale + batch)


def base_batch(job: Job) -> int:
    """The batch for which a job's samples were counted: the smallest that it may have."""
    return job.min_batch or job.batch


class Effective:
    """Step times stretched by what a batch lacks in efficiency, so that progress counts effective samples.

    A job without a noise scale is as fast as before.
    """

    def __init__(self, speeds: Speeds, noise_scales: Mapping[str, float]) -> None:
        """`noise_scales` in samples by `Job.job_id` or `Job.model`, the former first."""
        self._speeds = speeds
        self._noise_scales = noise_scales

    def step(self, job: Job, spread: Spread, batch: int) -> StepTime:
        """One update that counts as `batch` samples at the base batch."""
        step = self._speeds.step(job, spread, batch)
        noise_scale = self._noise_scales.get(job.job_id, self._noise_scales.get(job.model or ""))
        if noise_scale is None:
            return step
        worth = efficiency(batch, base_batch(job), noise_scale)
        return replace(
            step,
            step_s=step.step_s / worth,
            low_s=step.low_s / worth,
            high_s=step.high_s / worth,
            comm_s=step.comm_s / worth,
        )
