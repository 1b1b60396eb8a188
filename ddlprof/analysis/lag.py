"""Whether a device waits for its host, told by how far it is behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.thresholds import FINDING_STEPS
from ddlprof.model.records import MISSING

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis


def lag_share(ranks: Sequence[RankAnalysis]) -> float | None:
    """How far devices are behind their hosts at most in a step, as a share of its computing: the median.

    Launches queue up, so a device that has enough to do falls behind, by some of its computing at least before the host
    waits for it, and by whole steps where the host never does. One that waits for the next launch passes an event as
    soon as the host has recorded it. Of the rank whose device is furthest behind: the others may wait for it. None
    where fewer than `FINDING_STEPS` steady steps of some rank tell it.
    """
    shares = [_of_rank(rank) for rank in ranks]
    return max((share for share in shares if share is not None), default=None) if None not in shares else None


def _of_rank(rank: RankAnalysis) -> float | None:
    steps = rank.data.steps
    lag, compute = steps["device_lag_ns"], steps["compute_ns"]
    told = rank.times.steady & (lag != MISSING) & (compute > 0)
    if np.count_nonzero(told) < FINDING_STEPS:
        return None
    return float(np.median(lag[told] / compute[told]))
