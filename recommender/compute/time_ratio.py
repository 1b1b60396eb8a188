"""Step time on another GPU from step times on one: how the ratio depends on how busy the first one was.

A launch-bound step (short, and no shorter at a smaller batch) does not get faster on a faster GPU. Two numbers say so
from a single batch, four where several batches were measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """Step times of one GPU at one precision, by batch, ascending."""

    batches: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def several(self) -> bool:
        return len(self.batches) > 1


def features(series: Series, batch: int, seconds: float) -> Array:
    """The features of one step: logarithms of milliseconds and of the batch; where several batches were measured also
    of the step over the shortest one, and of the cost of a sample over the smallest one. Shape (2,) or (4,)."""
    values = [math.log(seconds * 1e3), math.log(batch)]
    if series.several:
        cheapest_s = min(s / b for s, b in zip(series.seconds, series.batches, strict=True))
        values += [math.log(seconds / min(series.seconds)), math.log(seconds / batch / cheapest_s)]
    return np.array(values)


def quadratic(scaled: Array) -> Array:
    """The values, their squares and products. Shape (..., n) -> (..., n + n (n + 1) / 2)."""
    rows, columns = np.triu_indices(scaled.shape[-1])
    return np.concatenate([scaled, scaled[..., rows] * scaled[..., columns]], axis=-1)


@dataclass(frozen=True)
class Fitted:
    """Where a fit of the logarithm of a ratio of step times holds, and how far off it is."""

    low: Array
    high: Array
    """The range of the features in the fit; outside of it they are taken at its edge."""
    bounds: tuple[float, ...]
    """Milliseconds between which the standard deviations below hold."""
    sd: tuple[float, ...]

    def sd_at(self, seconds: float) -> float:
        """The standard deviation of the logarithm for a step of that length."""
        return self.sd[int(np.searchsorted(self.bounds, seconds * 1e3))]

    def covers(self, values: Array) -> bool:
        """Whether the features lie in the range of the fit, within a factor of 1.5."""
        margin = math.log(1.5)
        return bool(np.all(values >= self.low - margin) and np.all(values <= self.high + margin))


@dataclass(frozen=True)
class Ratio(Fitted):
    """A regression of the logarithm of a ratio of step times on `features`."""

    centre: Array
    scale: Array
    intercept: float
    coefficients: Array
    squares: bool

    @classmethod
    def from_json(cls, data: Mapping[str, object], squares: bool) -> Ratio:
        def array(name: str) -> Array:
            return np.array(data[name], dtype=float)

        return cls(
            array("low"), array("high"), tuple(array("bounds_ms").tolist()), tuple(array("sd").tolist()),
            array("centre"), array("scale"), float(array("intercept")), array("coefficients"), squares,
        )  # fmt: skip

    def log(self, values: Array) -> float:
        """The mean of the logarithm."""
        scaled = (np.clip(values, self.low, self.high) - self.centre) / self.scale
        return self.intercept + float((quadratic(scaled) if self.squares else scaled) @ self.coefficients)
