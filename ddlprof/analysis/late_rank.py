"""Finds a rank that the others wait for, if it is one rank and not chance. Independent of the order of ranks.

Waited time decides, not how often a rank is last (`ddlprof.analysis.lateness`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddlprof.analysis.contention import is_starved
from ddlprof.analysis.lateness import Lateness
from ddlprof.analysis.summary import Summary
from ddlprof.analysis.thresholds import (
    CAUSE_SHARE,
    LATE_EXCESS_SHARE,
    LATE_EXPLAINED_SHARE,
    LATE_OF_TWO_SHARE,
    LATE_RANK_SHARE,
    LATE_RANK_STEPS,
    LATE_STRAGGLER_SHARE,
    STARVED_CAUSE_SHARE,
)
from ddlprof.base.units import listed
from ddlprof.model.classes import OWN, PARTS


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for, and of what it has more than the typical rank, if that is clear."""

    rank: int
    last_share: float
    """The share of the time for which ranks wait that they wait for this one."""
    cause: str | None = None
    own_ns: float | None = None
    typical_ns: float | None = None
    queued_share: float | None = None
    """The share of its time for which it waited for a processor, if that explains most of its lateness."""
    more_ns: float | None = None
    """How much longer it works in a step than the typical rank, in all classes together."""
    part: str | None = None
    """The part of the class that explains it, if one does: `compute_backward`."""
    others_load: bool = False
    """Whether another rank waits for batches of a loader of its own."""
    phases: tuple[tuple[int, int], ...] = ()
    """The first and last steps of the phases in which it is late; empty if it is so all the time."""

    @property
    def when(self) -> str:
        """`steps 40-79`: the phases as words; empty if it is late all the time."""
        return phase_words(self.phases)


def part_words(part: str) -> str:
    """A part of a class in a sentence: `backward`."""
    return part.partition("_")[2]


def phase_words(phases: Sequence[tuple[int, int]]) -> str:
    """Phases of steps as words; empty if there are none."""
    return f"steps {listed([f'{first}-{last}' for first, last in phases])}" if phases else ""


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
    lateness: Mapping[int, Lateness],
    straggler_share: float | None,
    queued: Mapping[int, float] | None = None,
) -> LateRank | None:
    """The rank that most of the waited time is waited for, and whose own time explains it.

    `straggler_share`: the share of the step that ranks wait for later ones; None: not known. `queued`: for each rank
    the share of its time for which it waited for a processor, if counted.
    """
    shares = {rank: lateness[rank].share for rank in ranks if lateness[rank].steps >= LATE_RANK_STEPS}
    rank = max(shares, key=lambda r: (shares[r], r), default=None)
    if rank is None or lateness[rank].lowest <= LATE_RANK_SHARE:
        return None
    step_ns = ranks[rank].mean_ns("step") or 0.0
    excesses = [excess for name in OWN if (excess := _excess(name, rank, ranks)) is not None]
    more_ns = sum(excess.more_ns for excess in excesses)
    waits_ns = more_ns if straggler_share is None else straggler_share * step_ns
    least = LATE_OF_TWO_SHARE if len(ranks) == 2 else LATE_STRAGGLER_SHARE
    if more_ns < LATE_EXCESS_SHARE * step_ns or waits_ns < least * step_ns:
        return None
    if more_ns * (1 - 1 / len(ranks)) < LATE_EXPLAINED_SHARE * waits_ns:  # it does not wait for itself
        return None
    queued_share = _starved(rank, queued or {}, more_ns / step_ns, {r: _own_share(ranks[r]) for r in ranks})
    others_load = any(each.mean_ns("data") is not None for other, each in ranks.items() if other != rank)
    late = LateRank(rank, shares[rank], queued_share=queued_share, more_ns=more_ns, phases=lateness[rank].phases,
                    others_load=others_load)  # fmt: skip
    cause = max(excesses, key=lambda excess: excess.more_ns)
    clear = cause.more_ns >= CAUSE_SHARE * sum(max(excess.more_ns, 0.0) for excess in excesses)
    if not clear or cause.more_ns < LATE_EXCESS_SHARE * step_ns:
        return late
    part = _part(cause, rank, ranks)
    return replace(late, cause=cause.name, own_ns=cause.own_ns, typical_ns=cause.typical_ns, part=part)


def _part(cause: _Excess, rank: int, ranks: Mapping[int, Summary]) -> str | None:
    """The part of the class that explains most of what the rank has more of it."""
    parts = [part for name in PARTS.get(cause.name, ()) if (part := _excess(name, rank, ranks)) is not None]
    most = max(parts, key=lambda part: part.more_ns, default=None)
    return most.name if most is not None and most.more_ns >= CAUSE_SHARE * cause.more_ns else None


def _starved(
    rank: int, queued: Mapping[int, float], more_share: float, own_shares: Mapping[int, float]
) -> float | None:
    """The share of its step for which the rank waited for a processor, if that explains most of its extra time.

    Who works longer also waits longer for processors that all are short of, so the others' waits are taken for as much
    work as the rank's. `own_shares`: the share of the step in which each rank works.
    """
    own = queued.get(rank, 0.0)
    others = [share / own_shares[r] for r, share in queued.items() if r != rank and own_shares.get(r)]
    more = own - (float(np.median(others)) * own_shares[rank] if others else 0.0)
    return own if is_starved(own) and more >= STARVED_CAUSE_SHARE * more_share else None


def _own_share(summary: Summary) -> float:
    return sum(summary.share(name) or 0.0 for name in OWN)


def _excess(name: str, rank: int, ranks: Mapping[int, Summary]) -> _Excess | None:
    own = ranks[rank].mean_ns(name)
    others = [mean for r, s in ranks.items() if r != rank and (mean := s.mean_ns(name)) is not None]
    if name == "data" and not others:  # it alone has a loader: what the others get is sent, or made in `other`
        others = [0.0]
    return _Excess(name, own, float(np.median(others))) if own is not None and others else None
