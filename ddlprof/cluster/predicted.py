"""Step times of jobs on a cluster as the recommender predicts them: the bridge from `Spread` and batch to `Target`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ddlprof.base.errors import UserError
from ddlprof.cluster.jobs import Job
from ddlprof.cluster.machines import Spread
from ddlprof.cluster.speeds import Speeds, StepTime
from recommender import Predicts, Target


class GpuShare(NamedTuple):
    """What one GPU does of a batch."""

    samples: int
    """In one forward pass."""
    passes: int
    """Forward passes for one update."""


def part_of(batch: int, gpus: int, most: int | None = None) -> GpuShare:
    """The largest part that any GPU gets of a batch, for which the others wait: shares differ by one sample where it
    does not divide. What exceeds `most`, the samples that fit the memory of one, takes several passes.
    """
    share = -(-batch // gpus)
    passes = 1 if most is None else -(-share // most)
    return GpuShare(-(-share // passes), passes)


class PredictedSpeeds:
    """Asks one predictor for each kind of job, once for each question."""

    def __init__(
        self, predictors: Mapping[str, Predicts], machine: Target | None = None, otherwise: Speeds | None = None
    ) -> None:
        """`predictors` by `Job.model` or `Job.job_id`, the latter first. `machine`: the type, GPU, links and settings
        of the cluster's machines; a GPU model that the cluster names for its machines replaces it. `otherwise` knows
        the jobs that are not among `predictors`; None: nobody does.
        """
        self._predictors = predictors
        self._machine = machine or Target()
        self._otherwise = otherwise
        self._known: dict[tuple[str, Spread, GpuShare], StepTime] = {}

    def step(self, job: Job, spread: Spread, batch: int) -> StepTime:
        """One update of `batch` samples in all; on GPUs of several models it is that of the slowest.

        Raises `UserError` for a job that nobody knows, `PredictionError` or `CatalogError` where it cannot be told.
        """
        name = job.job_id if job.job_id in self._predictors else job.model
        if name is None or name not in self._predictors:
            if self._otherwise is None:
                raise UserError(f"job {job.job_id}: nothing is known of how long a step of {name or 'it'} takes")
            return self._otherwise.step(job, spread, batch)
        part = part_of(batch, spread.gpus, job.max_batch_per_gpu)
        key = (name, spread, part)
        if key not in self._known:
            self._known[key] = self._ask(self._predictors[name], spread, part)
        return self._known[key]

    def _ask(self, predictor: Predicts, spread: Spread, part: GpuShare) -> StepTime:
        found = []
        for gpu_model in spread.gpu_models:
            target = replace(
                self._machine, placement=spread.placement, batch_per_gpu=part.samples, grad_accum=part.passes
            )
            if gpu_model is not None:
                target = replace(target, gpu_model=gpu_model, instance_type=None)
            estimate = predictor.predict(target)
            comm_s = estimate.times.interconnect_s + estimate.times.network_s
            found.append(StepTime(estimate.step_s, estimate.low_s, estimate.high_s, comm_s))
        return max(found, key=lambda step: step.step_s)
