"""Finds a rank that the others wait for, if it is one rank and not chance. Independent of the order of ranks.

Collectives of one step are late together, so steps are counted, not collectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ddlprof.analysis.contention import is_starved
from ddlprof.analysis.summary import Summary
from ddlprof.analysis.thresholds import (
    CAUSE_SHARE,
    LATE_EXCESS_SHARE,
    LATE_OF_TWO_SHARE,
    LATE_RANK_SHARE,
    LATE_RANK_STEPS,
    LATE_STRAGGLER_SHARE,
    STARVED_CAUSE_SHARE,
)
from ddlprof.analysis.traffic import RankTraffic
from ddlprof.analysis.uncertainty import lowest_share
from ddlprof.model.classes import OWN


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for, and of what it has more than the typical rank, if that is clear."""

    rank: int
    last_share: float
    """The share of the steps in which some rank was late."""
    cause: str | None = None
    own_ns: float | None = None
    typical_ns: float | None = None
    queued_share: float | None = None
    """The share of its time for which it waited for a processor, if that explains most of its lateness."""


@dataclass(frozen=True)
class _Excess:
    """How much more of a class a rank has than the typical other rank."""

    name: str
    own_ns: float
    typical_ns: float

    @property
    def more_ns(self) -> float:
        return self.own_ns - self.typical_ns


def find_late_rank(
    ranks: Mapping[int, Summary],
    traffic: Mapping[int, RankTraffic],
    straggler_share: float | None,
    queued: Mapping[int, float] | None = None,
) -> LateRank | None:
    """The rank that is last in most of the steps in which some rank is late, and whose own time explains it.

    `straggler_share`: the share of the step that ranks wait for later ones; None: not known. `queued`: for each rank
    the share of its time for which it waited for a processor, if counted.
    """
    shares = {
        rank: traffic[rank].last_steps / traffic[rank].late_steps
        for rank in ranks
        if traffic[rank].late_steps >= LATE_RANK_STEPS
    }
    rank = max(shares, key=lambda r: (shares[r], r), default=None)
    if rank is None:
        return None
    own = traffic[rank]
    if lowest_share(own.last_steps, own.late_steps, own.last_correlation) <= LATE_RANK_SHARE:
        return None
    step_ns = ranks[rank].mean_ns("step") or 0.0
    excesses = [excess for name in OWN if (excess := _excess(name, rank, ranks)) is not None]
    more_ns = sum(excess.more_ns for excess in excesses)
    waits_ns = more_ns if straggler_share is None else straggler_share * step_ns
    least = LATE_OF_TWO_SHARE if len(ranks) == 2 else LATE_STRAGGLER_SHARE
    if more_ns < LATE_EXCESS_SHARE * step_ns or waits_ns < least * step_ns:
        return None
    queued_share = _starved(rank, queued or {}, more_ns / step_ns)
    cause = max(excesses, key=lambda excess: excess.more_ns)
    clear = cause.more_ns >= CAUSE_SHARE * sum(max(excess.more_ns, 0.0) for excess in excesses)
    if not clear or cause.more_ns < LATE_EXCESS_SHARE * step_ns:
        return LateRank(rank, shares[rank], queued_share=queued_share)
    return LateRank(rank, shares[rank], cause.name, cause.own_ns, cause.typical_ns, queued_share)


def _starved(rank: int, queued: Mapping[int, float], more_share: float) -> float | None:
    """The share of its step for which the rank waited for a processor, if that explains most of its extra time."""
    own, others = queued.get(rank, 0.0), [share for r, share in queued.items() if r != rank]
    more = own - (float(np.median(others)) if others else 0.0)
    return own if is_starved(own) and more >= STARVED_CAUSE_SHARE * more_share else None


def _excess(name: str, rank: int, ranks: Mapping[int, Summary]) -> _Excess | None:
    own = ranks[rank].mean_ns(name)
    others = [mean for r, s in ranks.items() if r != rank and (mean := s.mean_ns(name)) is not None]
    return _Excess(name, own, float(np.median(others))) if own is not None and others else None
