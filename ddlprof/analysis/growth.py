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
    bytes_per_s: float
    bytes_now: float
    readings: int


def steady_growth(time_s: NDArray[np.float64], held: NDArray[np.float64]) -> float | None:
    """The slope in bytes per second by Theil and Sen; None where the memory does not grow through the whole time.

    It has to grow from each of six equal parts of the readings to the next by nearly as much as on average: a mark
    that new records push up ever more rarely does not. Kendall's test keeps out what chance can do.
    """
    known = ~np.isnan(held) & ~np.isnan(time_s)
    time_s, held = time_s[known], held[known]
    if len(held) < GROWTH_READINGS:
        return None
    steps = np.diff([part.mean() for part in np.array_split(held, GROWTH_PARTS)])
    grown = held[-1] - held[0]
    if steps.min() < GROWTH_STEADINESS * steps.mean() or grown < max(GROWTH_BYTES, GROWTH_SHARE * held[0]):
        return None
    chosen = np.unique(np.linspace(0, len(held) - 1, min(len(held), _MOST_POINTS)).astype(int))
    time_s, held = time_s[chosen], held[chosen]
    later, earlier = np.tril_indices(len(held), -1)
    time_apart, apart = time_s[later] - time_s[earlier], held[later] - held[earlier]
    n = len(held)
    deviation = sqrt(n * (n - 1) * (2 * n + 5) / 18)
    if np.sign(apart).sum() < GROWTH_SURE * deviation or not (time_apart > 0).any():
        return None
    return float(np.median(apart[time_apart > 0] / time_apart[time_apart > 0]))
