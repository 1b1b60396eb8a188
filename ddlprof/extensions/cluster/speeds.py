"""Step times of jobs: (job, placement, batch) -> seconds, as measured or as the recommender predicts them.

`penalties.py` has the step times of a trace, slowed down by measured factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import Placement
from ddlprof.recommender import Estimate, Layout, Predicts, Target

_PRECISION = "bf16"


@dataclass(frozen=True)
class StepTime:
    """One update of a job: seconds with their 80 % interval."""

    step_s: float
    low_s: float
    high_s: float
    comm_s: float = 0.0
    """Exposed communication, a part of `step_s`."""
    dimensions: Mapping[str, float] | None = None
    """`comm_s` by the dimension of the job's layout: tensor, pipeline, data, ...; None: it has no layout."""


class Speeds(Protocol):
    """Gives step times: always the same for the same arguments, and quickly, as simulations call it millions of
    times."""

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        """One update of `batch` samples over all GPUs. Raises `DdlprofError` where it is not known."""


Steps = Sequence[tuple[Placement, Sequence[int]]]
"""Placements, each with the batches of steps on it."""


def seconds_of(speeds: Speeds, job: Job, steps: Steps) -> NDArray[np.float64]:
    """The `step_s` of many steps of a job, one after the other. Speeds may have a method `seconds` that has them at
    once, which is faster; its last digits may differ."""
    at_once = getattr(speeds, "seconds", None)
    if at_once is not None:
        return np.asarray(at_once(job, steps))
    return np.array([speeds.step(job, placement, batch).step_s for placement, batches in steps for batch in batches])


class GpuShare(NamedTuple):
    """The part of a batch that one GPU computes."""

    samples: int
    """The samples in one forward pass."""
    passes: int
    """The forward passes for one update."""


def part_of(batch: int, gpus: int, most: int | None = None) -> GpuShare:
    """The largest part of a batch that any GPU gets, as the others wait for that one: where the batch does not divide
    by the GPUs, parts differ by one sample. A part above `most`, the samples that fit one GPU's memory, takes several
    passes.
    """
    share = -(-batch // gpus)
    passes = 1 if most is None else -(-share // most)
    return GpuShare(-(-share // passes), passes)


class WithLayout:
    """A predictor of a job whose model is divided over GPUs in one way, however many copies of it there are."""

    def __init__(self, predictor: Predicts, layout: Layout) -> None:
        self._predictor = predictor
        self._layout = layout

    def predict(self, target: Target) -> Estimate:
        """The step under the layout, in bf16 unless the target says otherwise. Raises as the predictor does."""
        return self._predictor.predict(replace(target, layout=self._layout, precision=target.precision or _PRECISION))


class PredictedSpeeds:
    """Step times by the recommender, with one predictor for each kind of job. Answers are cached."""

    def __init__(
        self, predictors: Mapping[str, Predicts], machine: Target | None = None, otherwise: Speeds | None = None
    ) -> None:
        """`predictors` by `Job.model` or `Job.job_id`, the latter first. `machine`: the type, GPU, links and settings
        of the cluster's machines; a GPU model that the cluster names for its machines replaces it. `otherwise` has the
        step times of jobs without a predictor; None: there are none.
        """
        self._predictors = predictors
        self._machine = machine or Target()
        self._otherwise = otherwise
        self._known: dict[tuple[str, Placement, GpuShare], StepTime] = {}

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        """One update of `batch` samples in all; on GPUs of several models it is that of the slowest.

        Raises `UserError` for a job without a predictor, and what the predictor raises.
        """
        name = self._name(job)
        if name is None:
            return self._others(job).step(job, placement, batch)
        part = part_of(batch, placement.gpus // job.copy_gpus, job.max_batch_per_gpu)
        key = (name, placement, part)
        if key not in self._known:
            self._known[key] = self._ask(self._predictors[name], placement, part)
        return self._known[key]

    def seconds(self, job: Job, steps: Steps) -> NDArray[np.float64]:
        """The `step_s` of many steps on GPUs of one model, as `seconds_of` says.

        Predictors may have a method `step_seconds` that has them at once, as `ddlprof.recommender.Predictor` does.
        """
        name = self._name(job)
        if name is None:
            return seconds_of(self._others(job), job, steps)
        predictor = self._predictors[name]
        models = {placement.gpu_models for placement, _ in steps}
        at_once = getattr(predictor, "step_seconds", None)
        if at_once is None or len(models) != 1 or len(min(models)) > 1:
            times = [self.step(job, placement, batch).step_s for placement, batches in steps for batch in batches]
            return np.array(times)
        which = np.repeat(np.arange(len(steps)), [len(batches) for _, batches in steps])
        batches = np.array([batch for _, batches in steps for batch in batches], dtype=np.int64)
        copies = np.array([placement.gpus // job.copy_gpus for placement, _ in steps])[which]
        share = -(-batches // copies)
        passes = np.ones_like(share) if job.max_batch_per_gpu is None else -(-share // job.max_batch_per_gpu)
        target = self._on(min(models)[0])
        placements = [placement.gpus_per_machine for placement, _ in steps]
        return np.asarray(at_once(target, placements, which, -(-share // passes), passes))

    def _name(self, job: Job) -> str | None:
        """The name of the job's predictor; None: it has none."""
        name = job.job_id if job.job_id in self._predictors else job.model
        return name if name in self._predictors else None

    def _others(self, job: Job) -> Speeds:
        if self._otherwise is None:
            raise UserError(f"job {job.job_id}: nothing is known of how long a step of {job.model or 'it'} takes")
        return self._otherwise

    def _ask(self, predictor: Predicts, placement: Placement, part: GpuShare) -> StepTime:
        found = []
        for gpu_model in placement.gpu_models:
            target = replace(
                self._on(gpu_model),
                placement=placement.gpus_per_machine,
                batch_per_gpu=part.samples,
                grad_accum=part.passes,
            )
            estimate = predictor.predict(target)
            comm_s = estimate.times.interconnect_s + estimate.times.network_s
            found.append(StepTime(estimate.step_s, estimate.low_s, estimate.high_s, comm_s, estimate.dimensions))
        return max(found, key=lambda step: step.step_s)

    def _on(self, gpu_model: str | None) -> Target:
        """The machines of the cluster that have this GPU."""
        return self._machine if gpu_model is None else replace(self._machine, gpu_model=gpu_model, instance_type=None)
