"""The parameters of one job: those of other jobs on such links, corrected by what was measured of this one.

Maximum a posteriori with normal priors; the uncertainty is that of the linearised posterior. What the parameters leave
unexplained at a measured point is carried to targets close to it, so that a measured target returns its measurement.

A measured point is believed as far as the form holds there. The form is off by some share of the computation and by
some share of the reductions (`FORM_REST`, `FORM_REDUCE`). Near the bend between hidden and exposed, a small share of
the reductions is all of what is exposed: a point whose communication was hidden bounds its cost from above, and says
little of how far below the bound it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recommender.communication.coefficients import Prior
from recommender.communication.exposed import Array, Links, Load, Placing, step_s

MEASURED = 0.015
"""How well a measured mean repeats, as a share of the step."""
FORM_REST = 0.04
"""How far the form is off at single placements of a job, as a share of the step: what is not communication."""
FORM_REDUCE = 0.2
"""The same of the cost of reductions, as a share of that cost: two placements that the form takes as alike differ so in
the published measurements. Chosen by errors over random pairs of measured placements, models left out."""
_REPEATS = 0.02
"""The variance of a residual at its own point, as a share of that of all residuals."""
_REACH = np.array([0.5, 0.3, 0.5])
"""How far a residual reaches: in doublings of GPUs, in the logarithm of nodes, in doublings of the computation."""
_PASSES = 2
"""How far the form holds at a point depends on the parameters: those of other jobs first, then the fitted ones."""
_STEP = 1e-5
"""The step of the numeric derivatives."""


@dataclass(frozen=True)
class Observation:
    """A measured multi-GPU point."""

    links: Links
    placing: Placing
    load: Load
    rest_and_exposed_s: float
    exposed_s: float | None


class FitEstimate(NamedTuple):
    """The seconds of computation (with what sharing a host does to it) and of exposed communication."""

    rest_s: float
    exposed_s: float
    sd: float
    """The standard deviation of the logarithm of their sum."""


class JobFit:
    """The parameters of one job on one kind of machine: prior, corrected by what was measured there."""

    def __init__(self, prior: Prior, observations: Sequence[Observation]) -> None:
        self.prior, self.observations = prior, tuple(observations)
        self._mean: Array = np.array(prior.mean)
        self._sd: Array = np.array(prior.sd)
        self._noise: Array = np.zeros(0)
        self.z = self._mean
        for _ in range(_PASSES if self.observations else 0):
            self._noise = np.array([noise for seen in self.observations for noise in self._believed(seen)])
            self.z = self._fit()
        self.covariance: Array = np.asarray(np.linalg.inv(self._information(self.z)), dtype=float)
        self._points = np.vstack([self.z, self.z + _STEP * np.eye(len(self.z))])
        if self.observations:
            self._seen_at = np.array([_coordinates(seen.placing, seen.load) for seen in self.observations])
            among_seen = np.array([self._closeness(seen.placing, seen.load) for seen in self.observations])
            self._weights = np.linalg.inv(among_seen + _REPEATS * np.eye(len(among_seen)))
            self._left = np.array([self._unexplained(seen) for seen in self.observations])

    def predict(self, links: Links, at: Placing, load: Load) -> FitEstimate:
        """The step on a target, at most as uncertain as a target that nothing close was measured to."""
        rest, exposed, gradient = self._linearised(links, at, load)
        correction, unknown = self._residual(at, load)
        return FitEstimate(rest * correction, exposed * correction, unknown * self._sd_of(gradient, self.covariance))

    @property
    def reach(self) -> float:
        """What each doubling of nodes or GPUs beyond all measured ones adds to the standard deviation."""
        return self.prior.reach[bool(self.observations)]

    def unknown(self, at: Placing, load: Load) -> float:
        """Share of the uncertainty that measured points close to a target leave: 1 far from all, about 0 at one."""
        return self._residual(at, load)[1]

    def sd_of(self, links: Links, at: Placing, load: Load) -> float:
        """The `sd` of `predict`; residuals are left aside."""
        return self._sd_of(self._linearised(links, at, load)[2], self.covariance)

    def sd_after(self, links: Links, at: Placing, load: Load, measured_at: Placing, measured_load: Load) -> float:
        """What `sd_of` would be after one more measurement elsewhere."""
        goal = self._linearised(links, at, load)[2]
        rest, exposed, row = self._linearised(links, measured_at, measured_load)
        seen = self.covariance @ row
        noise = self._believed(Observation(links, measured_at, measured_load, rest + exposed, None))[0]
        covariance: Array = self.covariance - np.outer(seen, seen) / (row @ seen + noise**2)
        return self._sd_of(goal, covariance)

    def _sd_of(self, gradient: Array, covariance: Array) -> float:
        """Calibrated standard deviation of the logarithm of a step."""
        measured = int(bool(self.observations))
        parameters = self.prior.widen[measured] * np.sqrt(gradient @ covariance @ gradient)
        return float(np.hypot(parameters, self.prior.floor[measured]))

    def _linearised(self, links: Links, at: Placing, load: Load) -> tuple[float, float, Array]:
        """Rest and exposed at the fitted parameters, and the gradient of the logarithm of their sum."""
        rest, exposed = step_s(self._points, links, at, load)
        logs = np.log(rest + exposed)
        return float(rest[0]), float(exposed[0]), (logs[1:] - logs[0]) / _STEP

    def _errors(self, z: Array) -> Array:
        """Measured against predicted, in units of what is believed of the point. One row for each row of `z`."""
        columns = []
        for seen in self.observations:
            rest, exposed = step_s(z, seen.links, seen.placing, seen.load)
            step = seen.rest_and_exposed_s
            if seen.exposed_s is None:
                columns.append(np.log((rest + exposed) / step))
            else:
                columns.append((rest - (step - seen.exposed_s)) / step)
                columns.append((exposed - seen.exposed_s) / step)
        return np.asarray(np.stack(columns, axis=-1) / self._noise)

    def _believed(self, seen: Observation) -> tuple[float, ...]:
        """The standard deviations of what `_errors` has of a point: repetition, and how far the form holds there.

        The exposed time differs by what it changes by if reductions cost `FORM_REDUCE` more, or less.
        """
        reduce = np.zeros((2, len(self.z)))
        reduce[:, :2] = [[FORM_REDUCE] * 2, [-FORM_REDUCE] * 2]
        _, exposed = step_s(self.z + reduce, seen.links, seen.placing, seen.load)
        bend = abs(float(exposed[0] - exposed[1])) / 2 / seen.rest_and_exposed_s
        rest = math.hypot(MEASURED, FORM_REST)
        return (math.hypot(rest, bend),) if seen.exposed_s is None else (rest, math.hypot(MEASURED, bend))

    def _jacobian(self, z: Array) -> tuple[Array, Array]:
        errors = self._errors(np.vstack([z, z + _STEP * np.eye(len(z))]))
        return errors[0], (errors[1:] - errors[0]).T / _STEP

    def _information(self, z: Array) -> Array:
        information = np.diag(1.0 / self._sd**2)
        if self.observations:
            jacobian = self._jacobian(z)[1]
            information = information + jacobian.T @ jacobian
        return information

    def _loss(self, z: Array) -> float:
        return float(np.sum(((z - self._mean) / self._sd) ** 2) + np.sum(self._errors(z) ** 2))

    def _fit(self) -> Array:
        """Levenberg-Marquardt on prior and measurements."""
        z: Array = self._mean.copy()
        damping, loss = 1e-2, self._loss(z)
        for _ in range(60):
            errors, jacobian = self._jacobian(z)
            slope = jacobian.T @ errors + (z - self._mean) / self._sd**2
            information = jacobian.T @ jacobian + np.diag(1.0 / self._sd**2)
            move = np.linalg.solve(information + damping * np.diag(np.diag(information)), -slope)
            new_loss = self._loss(z + move)
            if new_loss < loss:
                converged = loss - new_loss < 1e-6 * loss
                z, loss, damping = np.asarray(z + move), new_loss, damping / 5
                if converged:
                    break
            else:
                damping *= 5
        return z

    def _unexplained(self, seen: Observation) -> float:
        rest, exposed = step_s(self.z, seen.links, seen.placing, seen.load)
        return float(np.log(seen.rest_and_exposed_s / (rest + exposed)))

    def _closeness(self, at: Placing, load: Load) -> Array:
        """How close a target is to every measured point: 1 the same, 0 far away."""
        return np.asarray(np.exp(-0.5 * np.sum((self._seen_at - _coordinates(at, load)) ** 2, axis=1)))

    def _residual(self, at: Placing, load: Load) -> tuple[float, float]:
        """The factor on the prediction, and the share of its uncertainty that remains, from close measured points."""
        if not self.observations:
            return 1.0, 1.0
        near = self._closeness(at, load)
        weights = self._weights @ near
        unknown = max(1.0 - float(near @ weights), _REPEATS)
        return float(np.exp(weights @ self._left)), float(np.sqrt(unknown))


def _coordinates(at: Placing, load: Load) -> Array:
    return np.asarray(np.array([np.log2(at.gpus), np.log(at.nodes), np.log2(load.compute_s)]) / _REACH)
