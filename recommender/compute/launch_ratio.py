"""Step time on another GPU where the model's parameter tensors are counted: launches and work are told apart.

A step takes about as long as the longer of two things: launching its kernels, whose number grows with the tensors, and
the work of the GPU. Only the work gets faster on a faster GPU. Here is the formula; `scripts/fit/compute.py` fits it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recommender.compute.time_ratio import Array, Fitted


@dataclass(frozen=True)
class LaunchRatio(Fitted):
    """The logarithm of a ratio of step times from `scaling.features` and, last, the logarithm of the tensors.

    step = sqrt(launch ** 2 + (work * factor) ** 2). The work of a step is that of the cheapest sample where several
    batches were measured; else the step without its launches, by the same formula.
    """

    centre: Array
    """Logarithms of milliseconds and batch that are the origin of `factor`."""
    factor: Array
    """Logarithm of the ratio of work: constant, by work, by batch, by work squared, by work times batch, by what the
    sample costs over the cheapest one (logarithms)."""
    launch_ms: Array
    """The launch time on the GPU asked for: of any step, and for each tensor."""
    source_launch_ms: Array
    """The launch time on the measured GPU; used where one batch was measured."""
    least_work: float
    """The smallest share of a launch-bound step that its work takes."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LaunchRatio:
        low, high, centre, factor, launch_ms, source_launch_ms = (
            np.array(data[name], dtype=float)
            for name in ("low", "high", "centre", "factor", "launch_ms", "source_launch_ms")
        )
        return cls(
            low, high, tuple(data["bounds_ms"]), tuple(data["sd"]), centre, factor, launch_ms, source_launch_ms,
            float(data["least_work"]),
        )  # fmt: skip

    def logs(self, values: Array) -> Array:
        """The mean of the logarithm for values of shape (..., 3) or (..., 5). Tensors outside the fit count too."""
        tensors = np.exp(values[..., -1])
        values = np.clip(values[..., :-1], self.low[:-1], self.high[:-1])
        step, batch = values[..., 0], values[..., 1]
        if values.shape[-1] > 2:
            over = values[..., 3]
            work = step - over
        else:
            over = np.zeros_like(step)
            launched = self.source_launch_ms[0] + self.source_launch_ms[1] * tensors
            left = np.maximum(np.exp(2 * step) - launched**2, 0.0)
            work = np.log(left + (self.least_work * np.exp(step)) ** 2) / 2
        larger, more = work - self.centre[0], batch - self.centre[1]
        terms = np.stack([np.ones_like(step), larger, more, larger**2, larger * more, over], axis=-1)
        launch = np.log(self.launch_ms[0] + self.launch_ms[1] * tensors)
        both: Array = np.logaddexp(2 * launch, 2 * (work + terms @ self.factor)) / 2 - step
        return both

    def log(self, values: Array) -> float:
        """The mean of the logarithm for one step."""
        return float(self.logs(values))
