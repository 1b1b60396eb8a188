"""Step times on the machines on which a job was measured, from these measurements alone: also for jobs without a GPU.

Seconds of a step with k ranks on n machines, each with a batch of m samples in p passes:

    p (a0 + a1 m) + [k > 1] (b0 + b1 (k - 2)) + [n > 1] c0

with no coefficient below zero, fitted so that relative errors are small. What the measurements cannot tell is left out
and said. The recommender knows more, but of GPUs only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlprof.base.units import count
from ddlprof.recommender import Estimate, PredictionError, StepTimes, Target, Workload
from ddlprof.recommender.estimate import Z80
from ddlprof.recommender.target import format_placement

_LEAST_SD = 0.05
"""The least standard deviation of a prediction, as a share of the step: steps differ from day to day, however well the
fit agrees."""
_BEYOND_SD = 0.15
"""The standard deviation that is added for each doubling of ranks beyond those measured, and for each doubling or
halving of the only measured batch. This value and the next are assumptions, not fitted."""
_MACHINES_SD = 0.5
"""The standard deviation that is added if no run used several machines."""

Whole = NDArray[np.int64]


class _Shape(NamedTuple):
    """The quantities that the time of a step depends on."""

    gpus: int
    nodes: int
    samples: int
    """The samples of one rank in one pass."""
    passes: int


def _terms(gpus: Any, nodes: Any, samples: Any, passes: Any) -> tuple[Any, ...]:
    """The terms that the coefficients are multiplied by, of one `_Shape` or of many at once."""
    return passes, passes * samples, gpus > 1, (gpus > 1) * np.maximum(gpus - 2, 0), nodes > 1


class MeasuredPredictor:
    """Predicts from a job's own measurements, whatever machine they were made on."""

    def __init__(self, workload: Workload) -> None:
        """Raises `PredictionError` where nothing was measured."""
        if not workload.measurements:
            raise PredictionError(f"{workload.name}: no step was measured")
        self._name = workload.name
        self._shapes = [
            _Shape(sum(m.placement), len(m.placement), m.batch_per_gpu, m.grad_accum) for m in workload.measurements
        ]
        steps_s = np.array([m.step_s for m in workload.measurements])
        terms = np.array([_terms(*shape) for shape in self._shapes]) / steps_s[:, None]
        kept = self._told()
        self._coefficients, left = _fitted(terms[:, kept], kept)
        freedom = max(len(steps_s) - int((self._coefficients > 0).sum()), 1)
        self._sd = max(_LEAST_SD, left / math.sqrt(freedom))

    def _told(self) -> list[int]:
        """The indices of the coefficients that the measurements determine."""
        several = {shape.gpus for shape in self._shapes if shape.gpus > 1}
        batches = {shape.samples for shape in self._shapes}
        over = any(shape.nodes > 1 for shape in self._shapes)
        told = [len(batches) > 1, True, bool(several), len(several) > 1, over]
        return [number for number, is_told in enumerate(told) if is_told]

    @property
    def most_gpus(self) -> int:
        """The largest number of ranks that was measured."""
        return max(shape.gpus for shape in self._shapes)

    def predict(self, target: Target) -> Estimate:
        """The step on a placement of such machines. Raises `PredictionError` for several ranks if one was measured."""
        shape = _Shape(sum(target.placement), len(target.placement), target.batch_per_gpu, target.grad_accum or 1)
        if shape.gpus > 1 and self.most_gpus == 1:
            raise PredictionError(
                f"{self._name}: measured with one rank only, so nothing can be said of placement"
                f" {format_placement(target.placement)}; measure it with several ranks, too"
            )
        passes, samples, several, more, over = np.array(_terms(*shape)) * self._coefficients
        step_s = float(passes + samples + several + more + over)
        outside = self._outside(shape)
        sd = math.hypot(self._sd, *outside.values())
        return Estimate(
            step_s=step_s,
            low_s=step_s * math.exp(-Z80 * sd),
            high_s=step_s * math.exp(Z80 * sd),
            times=StepTimes(
                compute_s=float(passes + samples), interconnect_s=float(several + more), network_s=float(over)
            ),
            extrapolated=bool(outside),
            basis=(f"fitted to {count(len(self._shapes), 'measurement')} of this job", *outside),
        )

    def step_seconds(
        self, target: Target, placements: Sequence[tuple[int, ...]], which: Whole, samples: Whole, passes: Whole
    ) -> NDArray[np.float64]:
        """The `step_s` of `predict` for many steps at once, each on the placement of the number in `which`, with
        `samples` of each rank in each of `passes`. Raises `PredictionError` as `predict` does."""
        gpus = np.array([sum(placement) for placement in placements])[which]
        if self.most_gpus == 1 and (gpus > 1).any():
            self.predict(replace(target, placement=placements[int(which[gpus.argmax()])], batch_per_gpu=1))
        nodes = np.array([len(placement) for placement in placements])[which]
        terms = _terms(gpus, nodes, samples, passes)
        return sum(  # in the order of `predict`
            (term * coefficient for term, coefficient in zip(terms, self._coefficients, strict=True)),
            start=np.zeros(len(which)),
        )

    def _outside(self, shape: _Shape) -> dict[str, float]:
        """The ways in which a shape lies outside the measurements, with the standard deviation that each adds."""
        found = {}
        doublings = math.log2(shape.gpus / self.most_gpus)
        if doublings > 0:
            found[f"{shape.gpus} ranks, and at most {self.most_gpus} were measured"] = _BEYOND_SD * doublings
        batches = {each.samples for each in self._shapes}
        if len(batches) == 1 and shape.samples not in batches:
            away = abs(math.log2(shape.samples / next(iter(batches))))
            found["one batch was measured: computing is taken to grow with the batch"] = _BEYOND_SD * away
        if shape.nodes > 1 and all(each.nodes == 1 for each in self._shapes):
            found["several machines were not measured: taken for one"] = _MACHINES_SD
        return found


def _fitted(terms: NDArray[np.float64], kept: list[int]) -> tuple[NDArray[np.float64], float]:
    """All five coefficients, with 0 for those not kept, and the norm of the residual."""
    from scipy.optimize import nnls  # not at the top: its import takes a quarter of a second

    coefficients = np.zeros(5)
    coefficients[kept], left = nnls(terms, np.ones(len(terms)))
    return coefficients, float(left)
