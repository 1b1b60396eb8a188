"""Ridge regression of the logarithm of a ratio of step times, as `recommender.compute.gpu_ratios` reads it."""

from __future__ import annotations

from typing import Any

from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from recommender.compute.gpu_ratios import Array, quadratic


def fit_regression(values: Array, targets: Array, weights: Array, squares: bool, ridge: float) -> dict[str, Any]:
    """What `Ratio.from_json` reads, without its standard deviations. The intercept is not shrunk.

    `values` (n, features), `targets` and `weights` (n,).
    """
    scaler = StandardScaler().fit(values)
    scaled = scaler.transform(values)
    fitted = Ridge(alpha=ridge).fit(quadratic(scaled) if squares else scaled, targets, weights / weights.mean())
    return {
        "low": values.min(axis=0).tolist(),
        "high": values.max(axis=0).tolist(),
        "centre": scaler.mean_.tolist(),
        "scale": scaler.scale_.tolist(),
        "intercept": float(fitted.intercept_),
        "coefficients": fitted.coef_.tolist(),
    }
