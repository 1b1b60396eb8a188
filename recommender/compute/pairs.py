"""Step times on another GPU by ratios that were fitted on one pair of GPUs, where published steps allow it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recommender.compute.launch_ratio import LaunchRatio
from recommender.compute.time_ratio import Ratio, Series, features

CORRELATION = 0.5
"""Assumed of the errors of a ratio and of the other estimate: both start from the same measured step."""


@dataclass(frozen=True)
class Pairs:
    """Fitted by `scripts/fit/pairs.py`: for each pair of GPUs with one measured batch, and with several."""

    ratios: Mapping[tuple[str, str], tuple[Ratio, Ratio]]
    launches: Mapping[tuple[str, str], tuple[LaunchRatio, LaunchRatio]]
    """The same where parameter tensors are counted."""

    @classmethod
    def from_json(cls, rows: Sequence[Mapping[str, Any]]) -> Pairs:
        """Reads the rows of `pairs` in `coefficients.json`."""
        forms = ("one_batch", "several_batches")
        ratios, launches = {}, {}
        for row in rows:
            pair = row["source"], row["target"]
            one, several = (Ratio.from_json(row[form], squares=True) for form in forms)
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
    """Two estimates of a logarithm, each with its standard deviation, as one: weighed by what they are worth, their
    errors correlated by `CORRELATION`. Never less certain than the better one."""
    a, b = one[1], other[1]
    both = CORRELATION * a * b
    weight = min(max((b * b - both) / (a * a + b * b - 2 * both), 0.0), 1.0)
    variance = (weight * a) ** 2 + ((1 - weight) * b) ** 2 + 2 * weight * (1 - weight) * both
    return weight * one[0] + (1 - weight) * other[0], math.sqrt(variance)
