"""What is known of the communication of one job: posteriors for clusters whose steps scatter little, and much.

Measured points that the form of the step does not expect have two explanations: links or hosts unlike those of other
jobs, or a cluster whose steps scatter (ranks that wait for their input, neighbours on the network). Two points do not
tell which. Each explanation has a posterior (`posterior.py`), and predictions are means over both, weighed by how
likely the points are under each (Bayesian model averaging; Hoeting et al., 1999). Under the second, points teach little
and the estimate stays close to the form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ddlprof.recommender.communication.coefficients import Prior
from ddlprof.recommender.communication.exposed import Array, Links, Load, Placing
from ddlprof.recommender.communication.posterior import MEASURED, FitEstimate, Observation, Posterior

__all__ = ["MEASURED", "FitEstimate", "JobFit", "Observation"]

SCATTER = ((0.0, 0.8), (0.3, 0.2))
"""What exposed times of a cluster scatter by beside the form (standard deviation, as a share of the step), and how
probable that is beforehand: one of the five clusters with published placements scatters so much."""


class JobFit:
    """What is known of the parameters of one job on one kind of machine."""

    def __init__(self, prior: Prior, observations: Sequence[Observation]) -> None:
        self.prior, self.observations = prior, tuple(observations)
        levels = SCATTER if self.observations else SCATTER[:1]
        self._posteriors = [Posterior(prior, self.observations, scatter) for scatter, _ in levels]
        logs = np.array([math.log(share) for _, share in levels])
        if self.observations:
            logs -= np.array([each.surprise for each in self._posteriors]) / 2.0
        weights = np.exp(logs - logs.max())
        self._weights: Array = weights / weights.sum()
        likeliest = self._posteriors[int(np.argmax(self._weights))]
        self.z, self.covariance = likeliest.z, likeliest.covariance
        self._likeliest = likeliest

    @property
    def doubt(self) -> float:
        """The probability that the measured points tell of a cluster whose steps scatter, not of the job: 0 to 1."""
        return float(self._weights[1:].sum())

    @property
    def reach(self) -> float:
        """The standard deviation that each doubling of nodes or GPUs beyond all measured ones adds."""
        return self.prior.reach[bool(self.observations)]

    def predict(self, links: Links, at: Placing, load: Load) -> FitEstimate:
        """The step on a target; less uncertain close to measured points."""
        found = [each.predict(links, at, load) for each in self._posteriors]
        parts = np.array([(one.rest_s, one.exposed_s, one.sd**2) for one in found])
        rest, exposed, variance = (self._weights @ parts).tolist()
        return FitEstimate(rest, exposed, math.hypot(math.sqrt(variance), self._scattered(found, at, load)))

    def seconds(self, links: Links, at: Placing, load: Load) -> tuple[Array, Array]:
        """The computation and the exposed communication of `predict`, for arrays of targets."""
        found = [each.seconds(links, at, load) for each in self._posteriors]
        rest, exposed = (
            sum(weight * each[part] for weight, each in zip(self._weights, found, strict=True)) for part in (0, 1)
        )
        return np.asarray(rest), np.asarray(exposed)

    def unknown(self, at: Placing, load: Load) -> float:
        """The share of the uncertainty that measured points leave at a target: 1 far from all, about 0 at one."""
        return float(self._weights @ np.array([each.unknown(at, load) for each in self._posteriors]))

    def sd_of(self, links: Links, at: Placing, load: Load) -> float:
        """The `sd` of `predict`, without the effect of close measured points."""
        return math.hypot(self._likeliest.sd_of(links, at, load), self.scattered(links, at, load))

    def sd_after(self, links: Links, at: Placing, load: Load, measured_at: Placing, measured_load: Load) -> float:
        """The value of `sd_of` after one more measurement at `measured_at`."""
        sd = self._likeliest.sd_after(links, at, load, measured_at, measured_load)
        return math.hypot(sd, self.scattered(links, at, load))

    def scattered(self, links: Links, at: Placing, load: Load) -> float:
        """The standard deviation of the logarithm of the step by what the explanations differ, and steps scatter."""
        return self._scattered([each.predict(links, at, load) for each in self._posteriors], at, load)

    def _scattered(self, found: Sequence[FitEstimate], at: Placing, load: Load) -> float:
        logs = np.log([one.rest_s + one.exposed_s for one in found])
        own = np.array([each.scatter * each.unknown(at, load) for each in self._posteriors])
        return math.sqrt(self._weights @ ((logs - self._weights @ logs) ** 2 + own**2))
