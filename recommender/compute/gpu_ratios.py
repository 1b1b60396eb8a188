"""Step time on another GPU from step times on one, by ratios fitted on that pair of GPUs (`scripts/fit/pairs.py`).

A launch-bound step (short, and no shorter at a smaller batch) does not get faster on a faster GPU. Two numbers say so
from a single batch, four where several batches were measured. Where parameter tensors are counted, launches and work
are told apart: a step takes about as long as the longer of launching its kernels, whose number grows with the tensors,
and the work of the GPU, which alone gets faster on a faster GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_Fitted = TypeVar("_Fitted", bound="Fitted")
CORRELATION = 0.5
"""The assumed correlation between the errors of a ratio and of the other estimate: both start from the same measured
step."""


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
    """The range of validity and the errors of a fit of the logarithm of a ratio of step times."""

    low: Array
    high: Array
    """The range of the features in the fit; outside of it they are taken at its edge."""
    bounds_ms: Array
    """Milliseconds between which the standard deviations below hold."""
    sd: Array

    @classmethod
    def from_json(cls: type[_Fitted], data: Mapping[str, Any]) -> _Fitted:
        """The fields by name; lists become arrays."""
        values = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        return cls(**{name: np.array(v, dtype=float) if isinstance(v, list) else v for name, v in values.items()})

    def sd_at(self, seconds: float) -> float:
        """The standard deviation of the logarithm for a step of that length."""
        return float(self.sd[np.searchsorted(self.bounds_ms, seconds * 1e3)])

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
    """Of the scaled features, their squares and products."""

    def log(self, values: Array) -> float:
        """The mean of the logarithm."""
        scaled = (np.clip(values, self.low, self.high) - self.centre) / self.scale
        return self.intercept + float(quadratic(scaled) @ self.coefficients)


@dataclass(frozen=True)
class LaunchRatio(Fitted):
    """The logarithm of a ratio of step times from `features` and, last, the logarithm of the tensors.

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


@dataclass(frozen=True)
class GpuPairs:
    """Fitted by `scripts/fit/pairs.py`: for each pair of GPUs with one measured batch, and with several."""

    ratios: Mapping[tuple[str, str], tuple[Ratio, Ratio]]
    launches: Mapping[tuple[str, str], tuple[LaunchRatio, LaunchRatio]]
    """The ratios where parameter tensors are counted."""

    @classmethod
    def from_json(cls, rows: Sequence[Mapping[str, Any]]) -> GpuPairs:
        """Reads the rows of `pairs` in `coefficients.json`."""
        forms = ("one_batch", "several_batches")
        ratios, launches = {}, {}
        for row in rows:
            pair = row["source"], row["target"]
            one, several = (Ratio.from_json(row[form]) for form in forms)
            ratios[pair] = (one, several)
            one_of, several_of = (LaunchRatio.from_json(row[f"{form}_and_tensors"]) for form in forms)
            launches[pair] = (one_of, several_of)
        return cls(ratios, launches)

    def log_s(
        self, source: str, target: str, series: Series, batch: int, tensors: float | None
    ) -> tuple[float, float] | None:
        """The logarithm of seconds on `target` and its standard deviation, from steps on `source` in fp32; None where
        the pair was not fitted, or the batch not measured."""
        if (source, target) not in self.ratios or batch not in series.batches:
            return None
        seconds = series.seconds[series.batches.index(batch)]
        values = features(series, batch, seconds)
        fitted: Ratio | LaunchRatio = self.ratios[source, target][series.several]
        if tensors:
            fitted, values = self.launches[source, target][series.several], np.append(values, math.log(tensors))
        if not fitted.covers(values):
            return None
        return math.log(seconds) + fitted.log(values), fitted.sd_at(seconds)


def merged(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Two estimates of a logarithm, each with its standard deviation, combined with the weights of least variance.

    Their errors are correlated by `CORRELATION`. The result is at most as wide as the better one.
    """
    a, b = one[1], other[1]
    both = CORRELATION * a * b
    weight = min(max((b * b - both) / (a * a + b * b - 2 * both), 0.0), 1.0)
    variance = (weight * a) ** 2 + ((1 - weight) * b) ** 2 + 2 * weight * (1 - weight) * both
    return weight * one[0] + (1 - weight) * other[0], math.sqrt(variance)
