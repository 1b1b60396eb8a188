"""The parameters of communication of one job: a prior from other jobs on such links, updated by its measurements.

The estimate is maximum a posteriori, its uncertainty that of the linearised posterior. The prior of the cost of links
has heavy tails (Student's t): clusters whose links are many times slower than others with the same data sheet exist,
and two points are enough to believe it. All other parameters have normal priors.

What the formula (`exposed.py`) leaves unexplained at measured points, of the computation and of the exposed time apart,
is carried to targets close to them, so that a measured target returns its measurement class by class.

The weight of a measured point depends on how well the formula holds there. Its error is a share of the computation, a
share of the reductions and a share of the time lost to uneven ranks (`FORM_REST`, `FORM_REDUCE`, `FORM_LOST`). Near the
transition from hidden to exposed, a small share of the reductions is all of the exposed time: a point whose
communication was hidden bounds its cost from above, but says little of how far below the bound it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ddlprof.recommender.communication.coefficients import Prior
from ddlprof.recommender.communication.exposed import PARAMETERS, Array, Links, Load, Placing, reduce_s, step_s

MEASURED = 0.015
"""The standard deviation of a measured mean when repeated, as a share of the step."""
FORM_REST = 0.04
"""The error of the formula for the time without communication at single placements of a job (standard deviation, as a
share of the step)."""
FORM_REDUCE = 0.2
"""The same for the cost of reductions, as a share of that cost: in the published measurements, placements that are
alike to the formula differ this much. Chosen by errors over random pairs of measured placements, with models left out.
"""
FORM_LOST = 0.3
"""The same for the time that uneven ranks and neighbours in the host cost, as a share of that time."""
_REPEATS, _SAME = 0.02, 0.1
"""The variance of a residual that belongs to one point and nothing else, as a share of the variance of all residuals,
and the distance (in `_REACH`) up to which a target is that point."""
_REPEATED = 1e-4
"""The variance between measurements of the same point, as such a share."""
_REACH = np.array([0.5, 0.3, 0.5])
"""The distance over which residuals correlate: in doublings of GPUs, logarithm of nodes, and doublings of computation.
"""
_LEAST_SHARE = 1e-3
"""The least share of a step that counts as time without communication."""
_TAILS = 4.0
"""The degrees of freedom of Student's t for the parameters in `_HEAVY`."""
_HEAVY = np.array([name in ("log_intra", "log_inter", "log_full") for name in PARAMETERS])
_MOST = 3.0
"""The largest distance of a parameter from its prior: a factor of twenty, for logarithms."""
_STARTS = ((0.0, 0.0), (2.0, 0.0), (0.0, 2.0), (2.0, 2.0))
"""The distances of `log_intra` and `log_inter` from their prior at which the search starts."""
_MARGIN = 4.0
"""Links far from the prior must be so much likelier than links near it: minus twice the logarithm, e^2 times."""
_PASSES = 2
"""The weights of points depend on the parameters: the first pass takes those of the start, the second the fitted ones.
"""
_STEP = 1e-5
"""The step of the numeric derivatives."""


@dataclass(frozen=True)
class Observation:
    """A measured step on more than one GPU."""

    links: Links
    placing: Placing
    load: Load
    rest_and_exposed_s: float
    exposed_s: float | None


class FitEstimate(NamedTuple):
    """The seconds of computation, including what sharing a host adds, and of exposed communication."""

    rest_s: float
    exposed_s: float
    sd: float
    """The standard deviation of the logarithm of their sum."""


class Posterior:
    """The posterior of the parameters of one job on one kind of machine, where steps scatter by so much."""

    def __init__(self, prior: Prior, observations: Sequence[Observation], scatter: float = 0.0) -> None:
        """`scatter`: what steps of the cluster differ by beside the form, as a share of the step."""
        self.prior, self.observations, self.scatter = prior, tuple(observations), scatter
        self._own = 1.0 - (1.0 - _REPEATS) * FORM_REST**2 / (FORM_REST**2 + scatter**2)
        self._mean: Array = np.array(prior.mean)
        self._sd: Array = np.array(prior.sd)
        self._noise: Array = np.zeros(0)
        self.z = self._mean
        if self.observations:
            self.z, self._noise = self._fit()
        self.covariance: Array = np.asarray(np.linalg.inv(self._information(self.z)), dtype=float)
        self._points = np.vstack([self.z, self.z + _STEP * np.eye(len(self.z))])
        self._late = self._late_share() if scatter else 0.0
        if self.observations:
            self._coordinates_measured = np.array([_coordinates(seen.placing, seen.load) for seen in self.observations])
            closeness = np.array([self._closeness(seen.placing, seen.load) for seen in self.observations])
            self._weights = np.linalg.inv(closeness + _REPEATED * np.eye(len(closeness)))
            self._residuals = np.array([self._unexplained(seen) for seen in self.observations])

    def predict(self, links: Links, at: Placing, load: Load) -> FitEstimate:
        """The step on a target; less uncertain close to measured points."""
        rest, exposed, gradient = self._linearised(links, at, load)
        exposed += self._late * (rest + exposed)
        (log_rest, of_reductions), unknown = self._residual(at, load)
        exposed += float(of_reductions * reduce_s(self.z, links, at, load))
        return FitEstimate(
            rest * math.exp(log_rest), max(exposed, 0.0), unknown * self._sd_of(gradient, self.covariance)
        )

    def seconds(self, links: Links, at: Placing, load: Load) -> tuple[Array, Array]:
        """The computation and the exposed communication of `predict`, for arrays of targets."""
        rest, exposed = step_s(self.z, links, at, load)
        exposed = exposed + self._late * (rest + exposed)
        if self.observations:
            residuals = self._closeness(at, load) @ self._weights.T @ self._residuals
            rest = rest * np.exp(residuals[..., 0])
            exposed = exposed + residuals[..., 1] * reduce_s(self.z, links, at, load)
        return rest, np.maximum(exposed, 0.0)

    @property
    def surprise(self) -> float:
        """Minus twice the logarithm of the likelihood of the measured points, over all parameters (Laplace), up to a
        constant that is common to all scatters."""
        loss = self._loss(self.z) + 2.0 * float(np.sum(np.log(self._noise)))
        return loss - float(np.linalg.slogdet(self.covariance)[1])

    def unknown(self, at: Placing, load: Load) -> float:
        """The share of the uncertainty that measured points leave at a target: 1 far from all, about 0 at one."""
        return self._residual(at, load)[1]

    def sd_of(self, links: Links, at: Placing, load: Load) -> float:
        """The `sd` of `predict`, without the effect of close measured points."""
        return self._sd_of(self._linearised(links, at, load)[2], self.covariance)

    def sd_after(self, links: Links, at: Placing, load: Load, measured_at: Placing, measured_load: Load) -> float:
        """The value of `sd_of` after one more measurement at `measured_at`."""
        target_gradient = self._linearised(links, at, load)[2]
        rest, exposed, row = self._linearised(links, measured_at, measured_load)
        gain = self.covariance @ row
        noise = self._noise_of(Observation(links, measured_at, measured_load, rest + exposed, None), self.z)[0]
        covariance: Array = self.covariance - np.outer(gain, gain) / (row @ gain + noise**2)
        return self._sd_of(target_gradient, covariance)

    def _sd_of(self, gradient: Array, covariance: Array) -> float:
        """The calibrated standard deviation of the logarithm of a step."""
        measured = int(bool(self.observations))
        parameters = self.prior.widen[measured] * np.sqrt(gradient @ covariance @ gradient)
        return float(np.hypot(parameters, self.prior.floor[measured]))

    def _linearised(self, links: Links, at: Placing, load: Load) -> tuple[float, float, Array]:
        """Rest and exposed seconds at the fitted parameters, and the gradient of the logarithm of their sum."""
        rest, exposed = step_s(self._points, links, at, load)
        logs = np.log(rest + exposed)
        return float(rest[0]), float(exposed[0]), (logs[1:] - logs[0]) / _STEP

    def _errors(self, z: Array) -> Array:
        """The differences of predicted and measured, in standard deviations of the point. One row per row of `z`."""
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

    def _noise_of(self, seen: Observation, z: Array) -> tuple[float, ...]:
        """The standard deviations of a point's entries in `_errors`: of repetition and of the formula.

        That of the exposed time is how much it changes if reductions cost `FORM_REDUCE` more or less, and what uneven
        ranks and neighbours cost `FORM_LOST`.
        """
        moved = np.zeros((4, len(z)))
        moved[:2, :2] = [[FORM_REDUCE] * 2, [-FORM_REDUCE] * 2]
        moved[2:, 4:6] = [[FORM_LOST] * 2, [-FORM_LOST] * 2]
        _, exposed = step_s(z + moved, seen.links, seen.placing, seen.load)
        bend = math.hypot(*(exposed[::2] - exposed[1::2])) / 2 / seen.rest_and_exposed_s
        repeated = math.hypot(MEASURED, self.scatter)  # ranks wait for the late one at the end of the reductions
        rest = math.hypot(MEASURED, FORM_REST)
        return (math.hypot(rest, bend, self.scatter),) if seen.exposed_s is None else (rest, math.hypot(repeated, bend))

    def _noise_at(self, z: Array) -> Array:
        """`_noise_of` for all points, in the order of `_errors`."""
        return np.array([noise for seen in self.observations for noise in self._noise_of(seen, z)])

    def _jacobian(self, z: Array) -> tuple[Array, Array]:
        errors = self._errors(np.vstack([z, z + _STEP * np.eye(len(z))]))
        return errors[0], (errors[1:] - errors[0]).T / _STEP

    def _information(self, z: Array) -> Array:
        information = np.diag(self._surprise(z)[1] ** 2)
        if self.observations:
            jacobian = self._jacobian(z)[1]
            information = information + jacobian.T @ jacobian
        return information

    def _loss(self, z: Array) -> float:
        return float(np.sum(self._surprise(z)[0] ** 2) + np.sum(self._errors(z) ** 2))

    def _surprise(self, z: Array) -> tuple[Array, Array]:
        """How unlikely parameters are under the prior: numbers whose squares add up to minus twice the logarithm of
        its density, and their slopes."""
        far = (z - self._mean) / self._sd
        heavy = np.sqrt((_TAILS + 1.0) * np.log1p(far**2 / _TAILS))
        at_the_mean = math.sqrt((_TAILS + 1.0) / _TAILS)
        slope = (_TAILS + 1.0) * np.abs(far) / (_TAILS + far**2)
        slope = np.divide(slope, heavy, out=np.full_like(far, at_the_mean), where=heavy > 1e-9)
        return np.where(_HEAVY, np.sign(far) * heavy, far), np.where(_HEAVY, slope, 1.0) / self._sd

    def _fit(self) -> tuple[Array, Array]:
        """The parameters of maximum a posteriori, and the noise of the points there: the best of several starts, as
        links much slower than the prior lie behind a plateau where all their cost is hidden."""
        found = []
        for inside, between in _STARTS:
            z = self._mean.copy()
            z[:2] += inside, between
            for _ in range(_PASSES):
                self._noise = self._noise_at(z)
                z = self._descend(z)
            self._noise = self._noise_at(z)
            loss = self._loss(z) + 2.0 * float(np.sum(np.log(self._noise)))
            found.append((loss + (_MARGIN if inside or between else 0.0), z, self._noise))
        _, z, noise = min(found, key=lambda row: row[0])
        return z, noise

    def _descend(self, z: Array) -> Array:
        """Levenberg-Marquardt (Levenberg 1944, Marquardt 1963)."""
        damping, loss = 1e-2, self._loss(z)
        for _ in range(60):
            errors, jacobian = self._jacobian(z)
            surprise, steep = self._surprise(z)
            slope = jacobian.T @ errors + steep * surprise
            information = jacobian.T @ jacobian + np.diag(steep**2)
            move = np.linalg.solve(information + damping * np.diag(np.diag(information)), -slope)
            moved = np.clip(z + move, self._mean - _MOST, self._mean + _MOST)
            new_loss = self._loss(moved)
            if new_loss < loss:
                converged = loss - new_loss < 1e-6 * loss
                z, loss, damping = moved, new_loss, damping / 5
                if converged:
                    break
            else:
                damping *= 5
        return z

    def _late_share(self) -> float:
        """What steps of such a cluster are longer by, as a share: half the mean of the measured ones and of one that is
        as the form says. They are never shorter: ranks are late, not early."""
        longer = 0.0
        for seen in self.observations:
            rest, exposed = step_s(self.z, seen.links, seen.placing, seen.load)
            longer += seen.rest_and_exposed_s / (rest + exposed) - 1.0
        return max(longer / (len(self.observations) + 1.0) / 2.0, 0.0)

    def _unexplained(self, seen: Observation) -> tuple[float, float]:
        """What the formula leaves of a point: the logarithm of the rest, and exposed time as a share of reductions."""
        rest, exposed = step_s(self.z, seen.links, seen.placing, seen.load)
        exposed += self._late * (rest + exposed)
        measured_exposed = seen.exposed_s
        if measured_exposed is None:  # both parts are off by as much
            measured_exposed = exposed / (rest + exposed) * seen.rest_and_exposed_s
        measured_rest = max(seen.rest_and_exposed_s - measured_exposed, _LEAST_SHARE * seen.rest_and_exposed_s)
        reductions = reduce_s(self.z, seen.links, seen.placing, seen.load)
        return float(np.log(measured_rest / rest)), float((measured_exposed - exposed) / reductions)

    def _closeness(self, at: Placing, load: Load) -> Array:
        """The closeness of a target to every measured point: 1 at the point, 0 far away. Shape (points,), or (targets,
        points)."""
        away = 0.5 * np.sum((self._coordinates_measured - _coordinates(at, load)[..., None, :]) ** 2, axis=-1)
        return np.asarray((1.0 - self._own) * np.exp(-away) + self._own * np.exp(-away / _SAME**2))

    def _residual(self, at: Placing, load: Load) -> tuple[Array, float]:
        """What close measured points say of a target, as in `_unexplained`, and the share of the uncertainty of a
        prediction that remains."""
        if not self.observations:
            return np.zeros(2), 1.0
        near = self._closeness(at, load)
        weights = self._weights @ near
        unknown = max(1.0 - float(near @ weights), _REPEATS)
        return np.asarray(weights @ self._residuals), float(np.sqrt(unknown))


def _coordinates(at: Placing, load: Load) -> Array:
    return np.asarray(np.stack([np.log2(at.gpus), np.log(at.nodes), np.log2(load.compute_s)], axis=-1) / _REACH)
