"""How much of a training's time other work on its machine took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt
    from ddlprof.store import RankData


def queued_share(attempt: Attempt) -> float | None:
    """The share of its time that the main thread waited for a processor, of the rank with the most.

    None where no rank counted it for two readings during its steps.
    """
    shares = [share for rank in attempt.ranks if (share := _of_rank(rank.data)) is not None]
    return max(shares, default=None)


def _of_rank(rank: RankData) -> float | None:
    queued, time_ns = rank.context["process_queued_ns"], rank.context["time_ns"]
    training = ~np.isnan(queued)
    if len(rank.steps):
        first, last = rank.steps["start_ns"][0], rank.steps["start_ns"][-1] + rank.steps["step_ns"][-1]
        training &= (time_ns >= first) & (time_ns <= last)
    if np.count_nonzero(training) < 2:
        return None
    queued, time_ns = queued[training], time_ns[training]
    return float((queued[-1] - queued[0]) / (time_ns[-1] - time_ns[0]))
