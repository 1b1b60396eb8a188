"""Steps that become slower all the time, by the medians of parts of the steady steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.thresholds import GROWTH_PARTS, SLOWED_SHARE, SLOWED_STEPS

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis

_GROWING = ("compute", "other", "data")


@dataclass(frozen=True)
class Slowing:
    """The steps of one rank that become slower from each part of the steady steps to the next."""

    rank: int
    first_s: float
    """The median step of the first part."""
    last_s: float
    """That of the last part."""
    about: str
    """The class that grows most."""
    steps: int


def find_slowing(ranks: Sequence[RankAnalysis]) -> list[Slowing]:
    """The ranks whose steps become slower all the time."""
    return [slowing for rank in ranks if (slowing := _slowing(rank)) is not None]


def _slowing(rank: RankAnalysis) -> Slowing | None:
    times, steady = rank.times.times, rank.times.steady
    step_ns = times["step"][steady]
    if len(step_ns) < SLOWED_STEPS:
        return None
    parts = np.array([np.median(part) for part in np.array_split(step_ns, GROWTH_PARTS)])
    if not (np.diff(parts) > 0).all() or parts[-1] < (1 + SLOWED_SHARE) * parts[0]:
        return None
    grown = {name: _grown_ns(np.maximum(times[name][steady], 0)) for name in _GROWING}
    about = max(grown, key=lambda name: grown[name])
    return Slowing(rank.data.rank, parts[0] / 1e9, parts[-1] / 1e9, about, len(step_ns))


def _grown_ns(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    first, *_, last = np.array_split(values, GROWTH_PARTS)
    return float(np.median(last) - np.median(first))
