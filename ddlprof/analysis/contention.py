"""How much of a training's time other work on its machine took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.thresholds import STARVED_SHARE

if TYPE_CHECKING:
    from ddlprof.store import RankData


def is_starved(queued_share: float | None) -> bool:
    """Whether whoever waits for a processor for this share of its time waits for long; None: not counted."""
    return queued_share is not None and queued_share >= STARVED_SHARE


def queued_shares(ranks: Sequence[RankData]) -> dict[int, float]:
    """The share of its time that the main thread of each rank waited for a processor.

    Without the ranks that did not count it for two readings during their steps.
    """
    shares = {rank.rank: _of_rank(rank) for rank in ranks}
    return {rank: share for rank, share in shares.items() if share is not None}


def _of_rank(rank: RankData) -> float | None:
    queued, time_ns = rank.context["process_queued_ns"], rank.context["time_ns"]
    training = ~np.isnan(queued)
    if len(rank.steps):
        first, last = rank.steps["start_ns"][0], rank.steps["start_ns"][-1] + rank.steps["step_ns"][-1]
        training &= (time_ns >= first) & (time_ns <= last)
    if np.count_nonzero(training) < 2:
        return None
    queued, time_ns = queued[training], time_ns[training]
    passed_ns = float(time_ns[-1] - time_ns[0])
    return min(max(float(queued[-1] - queued[0]) / passed_ns, 0.0), 1.0) if passed_ns > 0 else None
