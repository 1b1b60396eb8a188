"""Steps that become slower all the time, by the medians of parts of the steady steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.contention import queued_until
from ddlprof.analysis.thresholds import GROWTH_PARTS, SLOWED_FALLS, SLOWED_SHARE, SLOWED_STEPS, SLOWED_TIMES
from ddlprof.model.records import MISSING

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis

_QUICK = 10
"""The percentile of the steps that nothing interrupts. On a busy machine a short step takes its own time, or a time
slice more, so that the median is the one or the other by chance."""
_LEAST_AWAKE = 0.05
_GROWING = ("compute", "other", "data")


@dataclass(frozen=True)
class Slowing:
    """The steps of one rank that become slower from part to part of the steady steps."""

    rank: int
    first_s: float
    """The median step of the first part."""
    last_s: float
    """That of the last part."""
    about: str
    """The class that grows most."""
    steps: int
    beside: bool = False
    """Whether the quickest steps became twice as long, waits for a processor left out, and the model's own work did
    not: more samples or longer ones would make backward passes longer, too."""


def find_slowing(ranks: Sequence[RankAnalysis]) -> list[Slowing]:
    """The ranks whose steps become slower all the time."""
    return [slowing for rank in ranks if (slowing := _slowing(rank)) is not None]


def _slowing(rank: RankAnalysis) -> Slowing | None:
    times, steady = rank.times.times, rank.times.steady
    step_ns = times["step"][steady]
    if len(step_ns) < SLOWED_STEPS:
        return None
    parts = np.array([np.median(part) for part in np.array_split(step_ns, GROWTH_PARTS)])
    quick = np.array([np.percentile(part, _QUICK) for part in np.array_split(step_ns, GROWTH_PARTS)])
    awake = quick * _awake_shares(rank)
    # Other work on the machine makes either of them fall now and then.
    falls = min(np.count_nonzero(np.triu(each[:, None] >= each, 1)) for each in (quick, parts))
    if falls > SLOWED_FALLS or quick[-1] < (1 + SLOWED_SHARE) * quick[0]:
        return None
    grown = {name: _grown_ns(np.maximum(times[name][steady], 0)) for name in _GROWING}
    about = max(grown, key=lambda name: grown[name])
    backward_ns = times["compute_backward"][steady]
    own = about == "compute" and (
        (backward_ns == MISSING).any() or _grown_ns(backward_ns) > SLOWED_SHARE * grown[about]
    )
    beside = awake[-1] >= SLOWED_TIMES * awake[0] and not own
    return Slowing(rank.data.rank, parts[0] / 1e9, parts[-1] / 1e9, about, len(step_ns), bool(beside))


def _awake_shares(rank: RankAnalysis) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Of each part of the steady steps the share in which the main thread does not wait for a processor."""
    starts_ns = np.array_split(rank.data.steps["start_ns"][rank.times.steady], GROWTH_PARTS)
    bounds_ns = np.array([(part[0], part[-1]) for part in starts_ns], dtype=np.float64)
    waited, passed = (np.diff(each)[:, 0] for each in (queued_until(rank.data, bounds_ns), bounds_ns))
    shares: np.ndarray[tuple[int], np.dtype[np.float64]] = np.clip(1 - waited / passed, _LEAST_AWAKE, 1)
    return shares


def _grown_ns(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    first, *_, last = np.array_split(values, GROWTH_PARTS)
    return float(np.median(last) - np.median(first))
