"""Decides what bounds the step, and which rank makes the others wait. Wording is `ddlprof.report.advice`.

A rule abstains where a signal is missing, and nothing is claimed that looking itself could have caused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ddlprof.analysis.summary import Summary

# The thresholds of every verdict.
WARN_SHARE = 0.10  # a stall below a tenth of the step is not worth a day of anybody's work
CRITICAL_SHARE = 0.20  # from a fifth on it is worth more than most changes to the model
CRITICAL_STEPS = 20  # fewer steps cannot carry a strong word
VERDICT_STEPS = 3  # fewer steps carry no word at all
CAUSE_SHARE = 0.80  # a cause is named only where it explains most of the stall
STANDARD_ERRORS = 2.0  # a mean nearer to zero than this may be chance
LATE_RANK_SHARE = 0.60  # two punctual ranks arrive last in half of the collectives each
LATE_RANK_COLLECTIVES = 20  # fewer are an accident
LATE_EXCESS_SHARE = 0.02  # of the step: a smaller difference between ranks explains no waiting

STALLS = ("data", "h2d", "comm", "interconnect", "network", "straggler", "other")


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for, and what it does more of than the typical rank, if that is clear."""

    rank: int
    last_share: float
    """Of the collectives in which some rank was late."""
    cause: str | None = None
    own_ns: float | None = None
    typical_ns: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What bounds the step. `stall` is None for COMPUTE-BOUND and where nothing can be said."""

    name: str
    """COMPUTE-BOUND, DATA-BOUND, ..., UNDECIDED."""
    severity: str
    """`ok`, `warning`, `critical`, or `unknown`."""
    stall: str | None = None
    share: float | None = None
    cause: str | None = None
    """The part of the stall that explains most of it: `fetch` or `prep` of data."""
    reason: str | None = None
    """Why nothing can be said: `few_steps`, `looking`, `noise` or `comm` (communication was not measured)."""


def diagnose(summary: Summary, steady_steps: int, looking_ns: float | None) -> Verdict:
    """The verdict over `steady_steps` steps of each rank; `looking_ns` is what the hooks take a step."""
    step = summary.mean_ns("step")
    if steady_steps < VERDICT_STEPS or not step:
        return Verdict("UNDECIDED", "unknown", reason="few_steps")
    stalls = stall_means(summary)
    stall = max(stalls, key=lambda name: stalls[name], default=None)
    small = stall is None or stalls[stall] < WARN_SHARE * step
    if summary.mean_ns("comm") is None and (small or stall == "other"):
        return Verdict("UNDECIDED", "unknown", reason="comm")  # it is in computing and `other`, nobody knows how much
    if stall is None or small:
        return Verdict("COMPUTE-BOUND", "ok", share=summary.share("compute"))
    share = stalls[stall] / step
    if stalls[stall] < (looking_ns or 0.0):
        return Verdict("UNDECIDED", "unknown", stall, share, reason="looking")
    if stalls[stall] < STANDARD_ERRORS * (summary.spreads[stall].standard_error_ns or 0.0):
        return Verdict("UNDECIDED", "unknown", stall, share, reason="noise")
    critical = share >= CRITICAL_SHARE and steady_steps >= CRITICAL_STEPS
    severity = "critical" if critical else "warning"
    return Verdict(f"{stall.upper()}-BOUND", severity, stall, share, _cause_of(stall, summary))


def stall_means(summary: Summary) -> dict[str, float]:
    """The measured stalls that exclude each other; `comm` is what is left of it after its known parts."""
    means = {name: mean for name in STALLS if (mean := summary.mean_ns(name)) is not None}
    if "interconnect" in means:
        means.pop("comm", None)
    elif "straggler" in means:
        means["comm"] -= means["straggler"]
    return means


def _cause_of(stall: str, summary: Summary) -> str | None:
    if stall != "data":
        return None
    whole = summary.mean_ns("data") or 0.0
    for cause in ("fetch", "prep"):
        if (summary.mean_ns(f"data_{cause}") or 0.0) >= CAUSE_SHARE * whole:
            return cause
    return None


def find_late_rank(ranks: Mapping[int, Summary], last: Mapping[int, int], late: Mapping[int, int]) -> LateRank | None:
    """The rank that arrives last in most of the collectives in which some rank was late.

    `last[rank]`: collectives in which this rank was waited for; `late[rank]`: those in which any rank was.
    """
    shares = {r: last[r] / late[r] for r in ranks if late.get(r, 0) >= LATE_RANK_COLLECTIVES}
    rank = max(shares, key=lambda r: shares[r], default=None)
    if rank is None or shares[rank] < LATE_RANK_SHARE:
        return None
    excess: dict[str, tuple[float, float, float]] = {}
    for name in ("data", "compute", "h2d", "other"):
        own = ranks[rank].mean_ns(name)
        others = [mean for r, s in ranks.items() if r != rank and (mean := s.mean_ns(name)) is not None]
        if own is not None and others:
            typical = float(np.median(others))
            excess[name] = (max(own - typical, 0.0), own, typical)
    cause = max(excess, key=lambda name: excess[name], default=None)
    if cause is None:
        return LateRank(rank, shares[rank])
    more, own, typical = excess[cause]
    clear = more >= CAUSE_SHARE * sum(m for m, _, _ in excess.values())
    if not clear or more < LATE_EXCESS_SHARE * (ranks[rank].mean_ns("step") or 0.0):
        return LateRank(rank, shares[rank])
    return LateRank(rank, shares[rank], cause, own, typical)
