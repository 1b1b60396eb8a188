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
"""An interval between two readings counts only if less than this share of it lies outside of steady steps."""


def is_starved(queued_share: float | None) -> bool:
    """Whether a rank that waited for a processor for this share of its time lacks processors. None: not counted."""
    return queued_share is not None and queued_share >= STARVED_SHARE


def queued_shares(ranks: Sequence[RankData]) -> dict[int, float]:
    """For each rank the share of its time for which the main thread waited for a processor.

    Ranks without two readings during their steps are left out.
    """
    shares = {rank.rank: _queued_share(rank) for rank in ranks}
    return {rank: share for rank, share in shares.items() if share is not None}


def other_cores(ranks: Sequence[RankData], busy_cores_per_rank: float | None) -> float | None:
    """How many cores a rank's share of the machine spends on other work than the job's; None: not known."""
    own = [_rate(rank, "job_cpu_ns") for rank in ranks]
    known = [each for each in own if each is not None]
    if busy_cores_per_rank is None or not known or len(known) < len(own):
        return None
    return max(0.0, busy_cores_per_rank - float(np.mean(known)))


def _queued_share(rank: RankData) -> float | None:
    rate = _rate(rank, "process_queued_ns")
    return None if rate is None else min(max(rate, 0.0), 1.0)


def _rate(rank: RankData, column: str) -> float | None:
    """How much a counter of time grew while the rank trained, over that time; None without two readings."""
    counted, time_ns = rank.context[column], rank.context["time_ns"]
    training = ~np.isnan(counted)
    if len(rank.steps):
        first, last = rank.steps["start_ns"][0], rank.steps["start_ns"][-1] + rank.steps["step_ns"][-1]
        training &= (time_ns >= first) & (time_ns <= last)
    if np.count_nonzero(training) < 2:
        return None
    counted, time_ns = counted[training], time_ns[training]
    passed_ns = float(time_ns[-1] - time_ns[0])
    return float(counted[-1] - counted[0]) / passed_ns if passed_ns > 0 else None


def queued_until(rank: RankData, time_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """For how long, in ns, the main thread has waited for a processor until these times, evenly between two readings; 0
    where it was not counted."""
    counted = rank.context["process_queued_ns"]
    known = ~np.isnan(counted)
    if np.count_nonzero(known) < 2:
        return np.zeros(time_ns.shape)
    return np.asarray(np.interp(time_ns, rank.context["time_ns"][known].astype(np.float64), counted[known]))


def own_steps_ns(rank: RankData, steady: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The time of a step without waits for a processor, in ns, for each interval between two readings in steady steps.

    `steady`: a mask over the rows of `rank.steps`. Only waits of the main thread, in a training on the host, are taken
    out, not those of its other threads and loader workers. Empty if not counted.
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
    """The sum over all steps so far, at the begin and end of each step."""
    ends = np.cumsum(of_steps)
    return np.ravel(np.column_stack([ends - of_steps, ends]))
