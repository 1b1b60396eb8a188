"""Finds single steps so long that they move the mean, so that they do not decide the verdict about all others.

The headline includes them, as it is the mean of what happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.summary import RankTimes, Summary, summarise
from ddlprof.analysis.thresholds import (
    OUTLIER_FACTOR,
    OUTLIER_MOVES_SHARE,
    OUTLIER_OF_STEPS,
    OUTLIER_SHARE,
    OUTLIER_STEPS,
)
from ddlprof.model.classes import CLASSES


@dataclass(frozen=True)
class Outliers:
    """The slow steps of an attempt, over all its ranks."""

    steps: list[int]
    of_steps: int
    longest_ns: float
    name: str
    """The class that contains most of their extra time."""
    rest: Summary
    """A summary of the other steady steps."""
    left_out: bool
    """Whether they are few enough that the verdict is about the other steps."""


def find_outliers(ranks: Sequence[RankTimes], whole: Summary) -> Outliers | None:
    """The slow steps; None if no step is far from the others or the mean hardly moves. `whole`: the ranks' summary."""
    steady = [rank.step[rank.steady] for rank in ranks]
    numbers, index = np.unique(np.concatenate([*steady, np.zeros(0, dtype=np.int64)]), return_inverse=True)
    if len(numbers) < OUTLIER_OF_STEPS:
        return None
    longest = np.zeros(len(numbers), dtype=np.int64)
    np.maximum.at(longest, index, np.concatenate([rank.times["step"][rank.steady] for rank in ranks]))
    slow = longest > OUTLIER_FACTOR * np.median(longest)
    if not slow.any() or slow.sum() > max(OUTLIER_STEPS, OUTLIER_SHARE * len(numbers)):
        return None
    rest, only = (
        summarise([_part(rank, rank.steady & (np.isin(rank.step, numbers[slow]) == chosen), chosen) for rank in ranks])
        for chosen in (False, True)
    )
    mean, usual = whole.mean_ns("step") or 0.0, rest.mean_ns("step")
    if not usual or mean - usual < OUTLIER_MOVES_SHARE * usual:
        return None
    return Outliers(
        steps=numbers[slow].tolist(),
        of_steps=len(numbers),
        longest_ns=float(longest.max()),
        name=max(CLASSES, key=lambda name: (only.mean_ns(name) or 0.0) - (rest.mean_ns(name) or 0.0)),
        rest=rest,
        left_out=int(slow.sum()) <= OUTLIER_STEPS,
    )


def _part(rank: RankTimes, steady: NDArray[np.bool_], only_rows: bool) -> RankTimes:
    return replace(rank, steady=steady, aggregates=() if only_rows else rank.aggregates)
