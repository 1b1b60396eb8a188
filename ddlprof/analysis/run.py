"""Puts the analysis of a run together: every attempt with its steady window, matched collectives and means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.calibration import Ladder
from ddlprof.analysis.collectives import RankCollectives, bus_factor, match_collectives
from ddlprof.analysis.diagnosis import LateRank, find_late_rank
from ddlprof.analysis.steady import SteadyWindow, find_steady
from ddlprof.analysis.stragglers import CommParts, split_comm
from ddlprof.analysis.summary import MIN_SPLIT_SHARE, ROW_FIELD, RankTimes, Summary, summarise
from ddlprof.model.records import COMM_PARTS, MISSING, Flag

if TYPE_CHECKING:
    from ddlprof.analysis.stragglers import InsideMachine
    from ddlprof.store import IntArray, RankData, RunData


@dataclass(frozen=True)
class RankAnalysis:
    """One rank of one attempt. `flags` are the recorded ones and WARMUP."""

    data: RankData
    flags: IntArray
    times: RankTimes
    collectives: RankCollectives
    parts: CommParts
    summary: Summary


@dataclass(frozen=True)
class CommTotals:
    """Communication of a steady step, mean over ranks and steps."""

    duration_ns: float
    bus_gb_s: float | None
    """Bus bandwidth while moving data; None where no transfer could be told from waiting."""
    ops: list[str]
    """The operations, the one that takes longest first."""


@dataclass(frozen=True)
class Attempt:
    """One start of the job; an elastic restart is another."""

    attempt: int
    ranks: list[RankAnalysis]
    window: SteadyWindow
    summary: Summary
    late_rank: LateRank | None
    comm: CommTotals | None
    notes: list[str]

    @property
    def steady_steps(self) -> int:
        """Of each rank; where they differ, the most."""
        return max((rank.summary.steady_steps for rank in self.ranks), default=0)


def analyse(run: RunData) -> list[Attempt]:
    """Every attempt of the run, in order."""
    workers = run.manifest.training.loader_workers if run.manifest else None
    attempts = sorted({rank.attempt for rank in run.ranks})
    return [_analyse_attempt([r for r in run.ranks if r.attempt == a], workers or 0) for a in attempts]


def headline_attempt(attempts: Sequence[Attempt]) -> Attempt | None:
    """The attempt that the headline is about: the one with most steady steps, the latest of equals."""
    return max(attempts, key=lambda a: (a.summary.steady_steps, a.attempt), default=None)


def _analyse_attempt(ranks: list[RankData], loader_workers: int) -> Attempt:
    capped = [aggregate.first_step for rank in ranks for aggregate in rank.aggregates]
    window = find_steady([r.steps for r in ranks], loader_workers, min(capped, default=None))
    matched = match_collectives(ranks)
    inside = _inside_machine(ranks)
    analysed = [_analyse_rank(rank, m, window, inside) for rank, m in zip(ranks, matched, strict=True)]
    summary = summarise([rank.times for rank in analysed])
    return Attempt(
        attempt=ranks[0].attempt,
        ranks=analysed,
        window=window,
        summary=summary,
        late_rank=_late_rank(analysed),
        comm=_comm_totals(analysed),
        notes=[*window.notes, *_summary_notes(summary), *_split_notes(analysed)],
    )


def _inside_machine(ranks: list[RankData]) -> InsideMachine:
    """What a collective would take if all its ranks shared a machine, as far as this run can tell."""
    rungs = next((rank.calibration for rank in ranks if rank.calibration), None)
    if rungs:
        return Ladder(rungs).transfer_us
    # Where no machine holds a second rank there is no interconnect that could be used: all is network.
    alone = len({rank.node for rank in ranks}) == ranks[0].header.world_size
    return lambda shape: 0.0 if alone else None


def _analyse_rank(
    rank: RankData, matched: RankCollectives, window: SteadyWindow, inside: InsideMachine
) -> RankAnalysis:
    parts = split_comm(rank, matched, inside)
    times = {name: rank.steps[field] for name, field in ROW_FIELD.items()}
    times |= {name: getattr(parts, name) for name in COMM_PARTS}
    number = rank.steps["step"]
    flags = rank.steps["flags"] | np.where(window.is_warmup(number), int(Flag.WARMUP), 0)
    rank_times = RankTimes(number, times, window.is_steady(number), rank.aggregates)
    return RankAnalysis(rank, flags, rank_times, matched, parts, summarise([rank_times]))


def _late_rank(ranks: list[RankAnalysis]) -> LateRank | None:
    last: dict[int, int] = {}
    late: dict[int, int] = {}
    for rank in ranks:
        steady = rank.times.steady[rank.data.collectives.row]
        last[rank.data.rank] = int(np.count_nonzero(rank.collectives.last & steady))
        late[rank.data.rank] = int(np.count_nonzero(rank.collectives.late & steady))
    return find_late_rank({rank.data.rank: rank.summary for rank in ranks}, last, late)


def _comm_totals(ranks: list[RankAnalysis]) -> CommTotals | None:
    duration_us: Counter[str] = Counter()
    transfer_us = moved_bytes = 0.0
    steps = sum(int(rank.times.steady.sum()) for rank in ranks)
    for rank in ranks:
        table, matched = rank.data.collectives, rank.collectives
        steady = rank.times.steady[table.row]
        for number, shape in enumerate(table.shapes):
            mine = steady & (table.shape == number)
            duration_us[shape.op] += int(np.maximum(matched.duration_us[mine], 0).sum())
            split = mine & (matched.transfer_us > 0)
            transfer_us += int(matched.transfer_us[split].sum())
            moved_bytes += int(split.sum()) * shape.bytes * bus_factor(shape.op, shape.ranks)
    if not steps or not duration_us:
        return None
    return CommTotals(
        duration_ns=1000 * duration_us.total() / steps,
        bus_gb_s=moved_bytes / transfer_us / 1000 if transfer_us else None,
        ops=[op for op, _ in duration_us.most_common()],
    )


def _summary_notes(summary: Summary) -> list[str]:
    if not summary.left_out:
        return []
    return [f"{summary.left_out} steady steps of single ranks left out: not all classes were measured in them"]


def _split_notes(ranks: list[RankAnalysis]) -> list[str]:
    """Why communication could not be taken apart, where that is more than a little."""
    comm = sum(int(np.maximum(r.times.times["comm"][r.times.steady], 0).sum()) for r in ranks)
    known = sum(int(r.times.times["comm"][r.times.steady & (r.parts.straggler != MISSING)].sum()) for r in ranks)
    if known >= MIN_SPLIT_SHARE * comm:
        if not any("inter" in r.collectives.scopes for r in ranks):
            return []
        if not any((r.parts.network != MISSING).any() for r in ranks):
            return ["interconnect and network are not told apart: nothing was calibrated inside the machines"]
        if not any(r.data.calibration for r in ranks):
            return ["no machine holds a second rank: all that communication costs is network, and interconnect is 0"]
        return []
    reasons = sum((r.parts.unsplit_us for r in ranks), Counter[str]())
    why = reasons.most_common(1)[0][0] if reasons else "some waits belong to no recorded collective"
    share = f"{100 * known / comm:.0f} %"
    return [f"waiting for a later rank is told from moving data for {share} of the communication: {why}"]
