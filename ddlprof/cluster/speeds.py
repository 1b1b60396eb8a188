"""Step times of jobs: (job, placement, batch) -> seconds, as measured or as the recommender predicts them.

`penalties.py` has the step times of a trace, slowed down by measured factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from ddlprof.base.errors import UserError
from ddlprof.cluster.jobs import Job
from ddlprof.cluster.machines import Placement
from recommender import Estimate, Layout, Predicts, Target

_PRECISION = "bf16"


@dataclass(frozen=True)
class StepTime:
    """One update of a job: seconds with their 80 % interval."""

    step_s: float
    low_s: float
    high_s: float
    comm_s: float = 0.0
    """Exposed communication, a part of `step_s`."""


class Speeds(Protocol):
    """Gives step times: always the same for the same arguments, and quickly, as simulations call it millions of
    times."""

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        """One update of `batch` samples over all GPUs. Raises `DdlprofError` where it is not known."""


class AsMeasured:
    """Every placement is as fast as the one on which the job was measured."""

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        """The measured step, which counts as computation only."""
        step_s = job.step_s or 1.0
        return StepTime(step_s, step_s, step_s)


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
        name = job.job_id if job.job_id in self._predictors else job.model
        if name is None or name not in self._predictors:
            if self._otherwise is None:
                raise UserError(f"job {job.job_id}: nothing is known of how long a step of {name or 'it'} takes")
            return self._otherwise.step(job, placement, batch)
        part = part_of(batch, placement.gpus // job.copy_gpus, job.max_batch_per_gpu)
        key = (name, placement, part)
        if key not in self._known:
            self._known[key] = self._ask(self._predictors[name], placement, part)
        return self._known[key]

    def _ask(self, predictor: Predicts, placement: Placement, part: GpuShare) -> StepTime:
        found = []
        for gpu_model in placement.gpu_models:
            target = replace(
                self._machine, placement=placement.gpus_per_machine, batch_per_gpu=part.samples, grad_accum=part.passes
            )
            if gpu_model is not None:
                target = replace(target, gpu_model=gpu_model, instance_type=None)
            estimate = predictor.predict(target)
            comm_s = estimate.times.interconnect_s + estimate.times.network_s
            found.append(StepTime(estimate.step_s, estimate.low_s, estimate.high_s, comm_s))
        return max(found, key=lambda step: step.step_s)
