"""How long the training waited for processors, because other work on its machine used them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.thresholds import (
    STARVED_SHARE,
)

if TYPE_CHECKING:
    from ddlprof.store import RankData


_UNCOUNTED_SHARE = 0.01
"""An interval between two readings counts only if less than this share of it is not in steady steps."""


def is_starved(queued_share: float | None) -> bool:
    """Whether a rank with this share of its time spent waiting for a processor is starved; None: not counted."""
    return queued_share is not None and queued_share >= STARVED_SHARE


def queued_shares(ranks: Sequence[RankData]) -> dict[int, float]:
    """The share of its time that the main thread of each rank waited for a processor.

    Without the ranks that did not count it for two readings during their steps.
    """
    shares = {rank.rank: _queued_share(rank) for rank in ranks}
    return {rank: share for rank, share in shares.items() if share is not None}


def _queued_share(rank: RankData) -> float | None:
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


def own_steps_ns(rank: RankData, steady: NDArray[np.bool_]) -> NDArray[np.float64]:
    """What a step took without waiting for a processor, in each interval between two readings among steady steps.

    `steady`: which rows of `rank.steps` are. Nanoseconds of the main thread of a training on the host; what its other
    threads and its loader workers waited for a processor is in them. Empty where it was not counted.
    """
    queued_ns, time_ns = rank.context["process_queued_ns"], rank.context["time_ns"].astype(np.float64)
    known = ~np.isnan(queued_ns)
    if not len(rank.steps) or np.count_nonzero(known) < 2:
        return np.zeros(0)
    queued_ns, time_ns = queued_ns[known], time_ns[known]
    starts_ns = rank.steps["start_ns"].astype(np.float64)
    bounds_ns = np.ravel(np.column_stack([starts_ns, starts_ns + rank.steps["step_ns"]]))  # steps and gaps in turn
    steps = np.interp(time_ns, bounds_ns, _summed(np.where(steady, 1.0, 0.0)))
    counted_ns = np.interp(time_ns, bounds_ns, _summed(np.where(steady, rank.steps["step_ns"], 0)))
    passed_ns = np.diff(time_ns)
    whole = (passed_ns > 0) & (np.diff(counted_ns) >= (1 - _UNCOUNTED_SHARE) * passed_ns)
    return np.asarray((passed_ns - np.diff(queued_ns))[whole] / np.diff(steps)[whole])


def _summed(of_steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of all steps so far at the beginning and the end of each step."""
    ends = np.cumsum(of_steps)
    return np.ravel(np.column_stack([ends - of_steps, ends]))
