"""What a team's own runs say about the speed of their GPUs: factors on the predicted parts of a step.

They are learned from residuals (`ddlprof learn`) and enter where the operators' parts do, before measured steps
of the job: whatever was measured of the job itself counts after them, so a measured target keeps its measurement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from ddlprof.base.reading import Interval, Length
from ddlprof.base.units import count
from ddlprof.instance_catalog import Gpu
from ddlprof.recommender.compute.gpu_peaks import precision_class
from ddlprof.recommender.compute.host import TYPICAL, Host
from ddlprof.recommender.compute.step_parts import Array, Changes, PartsSource, StepParts, total_s

FEATURES = ("log_step_s", "log_batch", "tensors_per_s")
"""What a factor depends on: the logarithms of the uncorrected step and of the batch, and the logarithm of one plus the
time that `TENSOR_S` for each parameter tensor would take, as a share of the step: what the host does for each layer."""
TENSOR_S = 1e-4
_MOST = 2.0
"""The largest logarithm of a factor."""
Log = Annotated[float, Interval(-50, 50)]
Logs = Annotated[tuple[Log, ...], Length(len(FEATURES), len(FEATURES))]
Text = Annotated[str, Length(0, 4096)]


@dataclass(frozen=True)
class ComputeCorrection:
    """The factor on the computation of one GPU at one class of precision, and what remains uncertain."""

    gpu_model: Text
    precision: Text
    """The class of precision."""
    knowledge: Text
    """What the parts are made of: `operators` or `flops`."""
    log_factor: Log
    """The logarithm of the factor where the features are those of `middle`."""
    slopes: Logs
    middle: Logs
    low: Logs
    """The least of each feature in the runs; beyond it the factor stays as it is there."""
    high: Logs
    sd: Annotated[float, Interval(0.001, 20)]
    """The standard deviation of the logarithm of the step of a job of which nothing was measured."""
    jobs: Annotated[int, Interval(1, 10**9)]
    where: Text = ""
    """The file that the correction is from, for people."""

    @property
    def subject(self) -> str:
        """What it is for, in words."""
        return compute_subject(self.gpu_model, self.precision, self.knowledge)

    def at(self, features: Array) -> float:
        """The logarithm of the factor."""
        away = np.clip(features, self.low, self.high) - np.array(self.middle)
        return float(np.clip(self.log_factor + away @ np.array(self.slopes), -_MOST, _MOST))


def compute_subject(gpu_model: str, precision: str, knowledge: str) -> str:
    """What a correction of computation is for, in words."""
    return f"{gpu_model} {precision}, by {knowledge}"


def features_of(parts: StepParts, batch: int, tensors: float | None) -> Array:
    """The `FEATURES` of a step, from its uncorrected parts."""
    seconds = float(total_s(parts.seconds))
    return np.array([math.log(seconds), math.log(batch), math.log1p(TENSOR_S * (tensors or 0.0) / seconds)])


class CorrectedParts:
    """Parts of a job's step, with the corrections that hold for the GPU."""

    def __init__(self, source: PartsSource, corrections: Sequence[ComputeCorrection], tensors: float | None) -> None:
        self._source, self._tensors = source, tensors
        self._corrections = {(each.gpu_model, each.precision, each.knowledge): each for each in corrections}

    @property
    def knowledge(self) -> str:
        """As in `PartsSource`."""
        return self._source.knowledge

    def at(self, gpu: Gpu, batch: int, precision: str, changes: Changes, host: Host = TYPICAL) -> StepParts:
        """As in `PartsSource.at`; unchanged on a GPU that none of the runs had."""
        parts = self._source.at(gpu, batch, precision, changes, host)
        found = self._corrections.get((gpu.gpu_model, precision_class(precision, gpu), self.knowledge))
        if found is None:
            return parts
        factor = math.exp(found.at(features_of(parts, batch, self._tensors)))
        told = f" ({found.where})" if found.where else ""
        sentence = f"times {factor:.2f}, learned from {count(found.jobs, 'job')} of yours on {gpu.gpu_model}{told}"
        forward_s, backward_s, optimizer_s = parts.phases or (0.0, 0.0, 0.0)
        return replace(
            parts,
            seconds=parts.seconds * factor,
            phases=parts.phases and (forward_s * factor, backward_s * factor, optimizer_s * factor),
            basis=(*parts.basis, sentence),
            learned_sd=found.sd,
        )
