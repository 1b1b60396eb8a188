"""What training B models as one will take and gain, from steps of a few of them."""

from __future__ import annotations

from collections.abc import Sequence

from ddlprof.fusion.results import Prediction

WORTH_GAIN = 1.2
"""Predictions are off by tens of percent: less than this may be a loss."""


def fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Launch share and share of each model, T(B) = a + b B, by least squares of the relative errors; none negative."""
    weights = [1 / time**2 for _, time in points]
    total = sum(weights)
    mean_b = sum(w * b for w, (b, _) in zip(weights, points, strict=True)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    spread = sum(w * (b - mean_b) ** 2 for w, (b, _) in zip(weights, points, strict=True))
    if not spread:
        return 0.0, mean_t / mean_b
    slope = sum(w * (b - mean_b) * (t - mean_t) for w, (b, t) in zip(weights, points, strict=True)) / spread
    if slope <= 0:  # more models took no longer
        return mean_t, 0.0
    if mean_t < slope * mean_b:
        square = sum(w * b * b for w, (b, _) in zip(weights, points, strict=True))
        return 0.0, sum(w * b * t for w, (b, t) in zip(weights, points, strict=True)) / square
    return mean_t - slope * mean_b, slope


def sizes_to_time(models: int) -> list[int]:
    """The numbers of models whose steps are timed before `models` of them train: a quarter and three quarters."""
    return [max(1, models // 4), max(2, 3 * models // 4)]


def verdict(found: Prediction) -> tuple[bool, str]:
    """Whether to fuse, and why."""
    beside = found.gain_beside
    share = f"{100 * found.launch_share:.0f} % of a step is the same for one model and for many"
    if found.gain < WORTH_GAIN:
        return False, f"{share}: {found.gain:.2f} times as fast as one after another, less than {WORTH_GAIN:g}"
    if beside is not None and beside < 1:
        return False, f"{share}: {found.beside} processes side by side are faster, fused is {beside:.2f} times as fast"
    return True, f"{share}: {found.gain:.2f} times as fast as one after another"
