"""Mixtures of experts in a report: their all-to-alls, and how unevenly tokens are routed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlprof.base.units import percent, significant

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt


@dataclass(frozen=True)
class ExpertsLine:
    """All-to-alls, by which tokens go to experts and come back; None: not known."""

    alltoall_s: float
    """The seconds of a step for which computing waits for them."""
    alltoall_share: float | None
    """The share of them in all communication that computing waits for."""
    ranks: int | None
    """The ranks among which the experts are divided."""
    imbalance: float | None
    """The tokens of the fullest rank over the mean of the ranks, in the mean over all-to-alls. None: parts are equal,
    as with experts of fixed capacity, or their sizes were not seen."""
    fullest_rank: int | None
    """The rank whose experts get most tokens on average."""
    fullest_share: float | None
    """How many times the mean it gets on average."""
    looked_at_steps: int | None
    """The number of steps in which tokens were counted."""


def experts_line(attempt: Attempt) -> ExpertsLine | None:
    """The line about the experts of an attempt; None without all-to-alls."""
    alltoall_s = attempt.comm.alltoall_s if attempt.comm is not None else None
    if alltoall_s is None:
        return None
    comm_s, load = (attempt.summary.mean_ns("comm") or 0.0) / 1e9, attempt.experts
    return ExpertsLine(
        alltoall_s=alltoall_s,
        alltoall_share=min(alltoall_s / comm_s, 1.0) if comm_s else None,
        ranks=load.ranks if load else None,
        imbalance=load.imbalance if load else None,
        fullest_rank=load.fullest if load else None,
        fullest_share=load.fullest_share if load else None,
        looked_at_steps=load.steps if load else None,
    )


def experts_text(line: ExpertsLine) -> str:
    """The card's line; empty where tokens were not counted: all-to-alls then need not be of experts."""
    if line.imbalance is None or line.fullest_share is None:
        return ""
    share = f"all-to-all is {percent(line.alltoall_share)} of the communication; " if line.alltoall_share else ""
    text = f"{share}the fullest of {line.ranks} ranks gets {significant(line.imbalance)} times the mean of tokens"
    return f"{text}; most on average: rank {line.fullest_rank} ({significant(line.fullest_share)} times)"
