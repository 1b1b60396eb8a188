"""Memory that grows all the time, as a leak does, and not to a plateau, as caches do."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.thresholds import (
    GROWTH_BYTES,
    GROWTH_PARTS,
    GROWTH_READINGS,
    GROWTH_SHARE,
    GROWTH_STEADINESS,
    GROWTH_SURE,
)

_MOST_POINTS = 200
"""More are thinned out: the slopes of all pairs are taken."""


@dataclass(frozen=True)
class Growth:
    """The memory of one rank that grows steadily."""

    rank: int
    where: str
    """`process` or `device`."""
    bytes_per_step: float
    bytes_now: float
    readings: int


def steady_growth(step: NDArray[np.float64], held: NDArray[np.float64]) -> float | None:
    """The slope in bytes per step by Theil and Sen; None where the memory does not grow through all the steps.

    `step`: how far the training was at each reading. The memory has to grow from each of six parts of the steps to the
    next by nearly as much as on average: a mark that new records push up ever more rarely does not. Kendall's test
    keeps out what chance can do.
    """
    known = ~np.isnan(held)
    step, held = step[known], held[known]
    if len(held) < GROWTH_READINGS or held[-1] - held[0] < max(GROWTH_BYTES, GROWTH_SHARE * held[0]):
        return None
    if not _in_every_part(step, held):
        return None
    chosen = np.unique(np.linspace(0, len(held) - 1, min(len(held), _MOST_POINTS)).astype(int))
    step, held = step[chosen], held[chosen]
    later, earlier = np.tril_indices(len(held), -1)
    steps_apart, apart = step[later] - step[earlier], held[later] - held[earlier]
    n = len(held)
    deviation = sqrt(n * (n - 1) * (2 * n + 5) / 18)
    if np.sign(apart).sum() < GROWTH_SURE * deviation:
        return None
    return float(np.median(apart[steps_apart > 0] / steps_apart[steps_apart > 0]))


def _in_every_part(step: NDArray[np.float64], held: NDArray[np.float64]) -> bool:
    """Whether the slopes between parts of equally many readings are alike; readings need not be evenly spaced."""
    mean_step, mean_held = (np.array([p.mean() for p in np.array_split(v, GROWTH_PARTS)]) for v in (step, held))
    if not (np.diff(mean_step) > 0).all():
        return False
    slopes = np.diff(mean_held) / np.diff(mean_step)
    return bool(slopes.min() >= GROWTH_STEADINESS * (mean_held[-1] - mean_held[0]) / (mean_step[-1] - mean_step[0]))
