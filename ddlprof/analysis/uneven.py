"""Whether ranks get different amounts of work from step to step, and whether the samples that they get explain it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.classes import OWN
from ddlprof.model.records import MISSING

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis


@dataclass(frozen=True)
class Uneven:
    """How the ranks of a step differ, over the steady steps that all of them have."""

    samples_spread: float
    """The standard deviation of the ranks' samples in a step, as a share of their mean."""
    correlation: float
    """Of a rank's samples with its own time in the step, both compared with the other ranks'."""
    steps: int


def find_uneven(ranks: Sequence[RankAnalysis]) -> Uneven | None:
    """None where there is one rank, or the samples of a step are not known."""
    if len(ranks) < 2:
        return None
    seen = [_numbers(rank.times.step) for rank in ranks]
    common = seen[0][0]
    for rank, (numbers, row) in zip(ranks, seen, strict=True):
        at = np.minimum(np.searchsorted(numbers, common), max(len(numbers) - 1, 0))
        common = common[(numbers[at] == common) & rank.times.steady[row[at]]] if len(numbers) else numbers
    if not len(common):
        return None
    own, samples = [], []
    for rank, (numbers, row) in zip(ranks, seen, strict=True):
        rows = row[np.searchsorted(numbers, common)]
        own.append(sum(np.maximum(rank.times.times[name][rows], 0) for name in OWN))
        samples.append(rank.data.steps["samples"][rows])
    if any((column == MISSING).any() for column in samples):
        return None
    time_away, samples_away = _away(np.array(own, float)), _away(np.array(samples, float))
    mean = float(np.mean(samples))
    spread = float(samples_away.std()) / mean if mean else 0.0
    both = float(np.sqrt((time_away**2).sum() * (samples_away**2).sum()))
    correlation = float((time_away * samples_away).sum()) / both if both else 0.0
    return Uneven(spread, correlation, len(common))


def _numbers(steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different numbers in order, and a row of each. They are in order unless the file is damaged."""
    if (np.diff(steps) > 0).all():
        return steps, np.arange(len(steps))
    return np.unique(steps, return_index=True)


def _away(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each rank is from the mean of its step."""
    return np.asarray(values - values.mean(axis=0))
