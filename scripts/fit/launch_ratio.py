"""Fits `recommender.compute.gpu_ratios.LaunchRatio` to one pair of GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import least_squares

from recommender.compute.gpu_ratios import Array, LaunchRatio

PRIOR = np.array([0, 0, 0, 0, 0, 0, 0.5, -2, 0.5, -2, -1.5])
"""`factor` (its constant is set to the mean), then logarithms: launch of any step in milliseconds and for each tensor,
the same on the measured GPU, least work. The launches are those of a small step of TensorFlow, roughly."""
PRIOR_SD = np.array([1, 0.3, 0.3, 0.1, 0.1, 0.3, 0.7, 0.7, 0.7, 0.7, 0.5])
SHRINKAGE = 0.015
"""Weight of the prior against that of all steps together."""


def fit_launch(values: Array, targets: Array, weights: Array) -> dict[str, Any]:
    """Returns the form that `LaunchRatio.from_json` reads, without its standard deviations.

    `values` (n, 3) or (n, 5), their last column the logarithm of the tensors; `targets` and `weights` (n,).
    """
    prior = PRIOR.copy()
    prior[0] = np.average(targets, weights=weights)
    root = np.sqrt(weights / weights.mean())
    pull = SHRINKAGE * np.sqrt(len(targets)) / PRIOR_SD

    def residuals(parameters: Array) -> Array:
        ratio = LaunchRatio.from_json({**_named(parameters, values), "bounds_ms": [], "sd": [0.0]})
        return np.concatenate([root * (ratio.logs(values) - targets), pull * (parameters - prior)])

    return _named(least_squares(residuals, prior).x, values)


def _named(parameters: Array, values: Array) -> dict[str, Any]:
    return {
        "low": values.min(axis=0).tolist(),
        "high": values.max(axis=0).tolist(),
        "centre": values[:, :2].mean(axis=0).tolist(),
        "factor": parameters[:6].tolist(),
        "launch_ms": np.exp(parameters[6:8]).tolist(),
        "source_launch_ms": np.exp(parameters[8:10]).tolist(),
        "least_work": float(np.exp(parameters[10])),
    }
