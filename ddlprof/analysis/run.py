"""Analyses a run: finds the steady window, matched collectives and means of every attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.amounts import Amounts, amounts_of
from ddlprof.analysis.arrivals import split_by_arrival
from ddlprof.analysis.bubbles import Bubbles, Pipeline
from ddlprof.analysis.clocks import ClockOffset, clock_offsets, on_device
from ddlprof.analysis.collectives import RankCollectives, match_collectives
from ddlprof.analysis.contention import queued_shares
from ddlprof.analysis.issued import IssuedByRank, IssuedKind, issued_by
from ddlprof.analysis.late_rank import LateRank, find_late_rank
from ddlprof.analysis.lateness import Lateness, lateness_of
from ddlprof.analysis.outliers import Outliers, find_outliers
from ddlprof.analysis.phases import Phases, batch_of, differ, of_line, phases_and_window
from ddlprof.analysis.steady import SteadyWindow
from ddlprof.analysis.stragglers import NO_END, CommParts, SizeSweeps, split_comm
from ddlprof.analysis.summary import MIN_SPLIT_SHARE, RankTimes, Summary, summarise
from ddlprof.analysis.traffic import CommTotals, RankTraffic, comm_totals, rank_traffic
from ddlprof.model.classes import COMM_PARTS, RECORDED
from ddlprof.model.manifest import Manifest, TrainingFacts
from ddlprof.model.records import DEVICE_CLOCK, MISSING, Flag

if TYPE_CHECKING:
    from ddlprof.analysis.experts import ExpertLoad
    from ddlprof.analysis.loss_curve import LossCurve
    from ddlprof.analysis.stragglers import InsideMachine
    from ddlprof.store import IntArray, RankData, RunData


_NOT_TIMED = (
    "interconnect, network and straggler are empty, as NCCL does not tell when its collectives end: --time-collectives "
    "has torch time them, --profiler-windows 3 looks into a few steps (see docs/measurement.md for what each costs)"
)
_IN_WINDOWS = "the parts of communication are those of the steps in profiler windows"


@dataclass(frozen=True)
class RankAnalysis:
    """One rank of one attempt. `flags` are the recorded flags, with WARMUP added."""

    data: RankData
    flags: IntArray
    times: RankTimes
    parts: CommParts
    traffic: RankTraffic
    lateness: Lateness
    summary: Summary
    """The summary of this rank's steady steps. It has means only."""
    clock: ClockOffset | None
    match: Callable[[], RankCollectives]
    issued: dict[IssuedKind, IssuedByRank] = field(default_factory=dict)
    """The collectives of its steady steps by issuer and operation."""

    @property
    def collectives(self) -> RankCollectives:
        """The matched collectives, computed anew at each use. With hundreds of ranks, keep those of one at a time."""
        return self.match()

    @property
    def shown_origin_unix_ns(self) -> int:
        """The unix time of the rank's origin in nanoseconds, on the clock of rank 0's node."""
        return self.data.header.origin_unix_ns - (self.clock.offset_ns if self.clock else 0)


@dataclass(frozen=True)
class Attempt:
    """One start of the job; an elastic restart is another."""

    attempt: int
    ranks: list[RankAnalysis]
    window: SteadyWindow
    summary: Summary
    outliers: Outliers | None
    late_rank: LateRank | None
    comm: CommTotals | None
    clocks: dict[int, ClockOffset | None]
    """The clock offsets by node; None: no collective or reading links the node to rank 0's."""
    queued_shares: dict[int, float]
    """For each rank that counted it, the share of its time for which the main thread waited for a processor."""
    notes: list[str]
    pipelines: list[Pipeline] = field(default_factory=list)
    phases: Phases | None = None
    """The phases of the training, one of which all this is of; None where there is one."""

    @property
    def later_phases(self) -> list[int]:
        """The first steps of the phases after the first one."""
        return [] if self.phases is None else self.phases.starts[1:].tolist()

    @property
    def fed(self) -> list[RankAnalysis]:
        """The ranks whose samples are what their models get: all, or those without a loader, beside one that has it."""
        return [rank for rank in self.ranks if not rank.times.has_loader] or self.ranks

    def manifest(self, manifest: Manifest | None) -> Manifest | None:
        """The run's manifest, without what is of another phase, and with the batch of those that are sent theirs."""
        if self.phases is None:
            return manifest if manifest is None or len(self.fed) == len(self.ranks) else self._divided(manifest)
        batch, passes = batch_of([rank.data for rank in self.ranks], [rank.times.steady for rank in self.ranks])
        return self.phases.manifest(manifest, batch, passes)

    def _divided(self, manifest: Manifest) -> Manifest:
        """A manifest with the batch that the ranks without a loader get."""
        batch, passes = batch_of([rank.data for rank in self.fed], [rank.times.steady for rank in self.fed])
        training = manifest.training
        if batch is None or training.strategy not in ("ddp", "fsdp", "zero"):
            return manifest
        whole = batch * passes * (training.data_parallel_ranks or len(self.ranks))
        return replace(manifest, training=replace(training, batch_per_rank=batch, global_batch=whole))

    @property
    def queued_share(self) -> float | None:
        """The largest of `queued_shares`; None if no rank counted it."""
        return max(self.queued_shares.values(), default=None)

    @property
    def steady_steps(self) -> int:
        """The number of steady steps of each rank; where they differ, the largest."""
        return max((rank.summary.steady_steps for rank in self.ranks), default=0)

    @property
    def loss_rank(self) -> RankData | None:
        """The lowest rank that recorded the loss of the training; None where none did."""
        return min((r.data for r in self.ranks if r.data.training_loss), key=lambda r: r.header.rank, default=None)

    @cached_property
    def loss_curve(self) -> LossCurve | None:
        """The curve of the losses that this rank recorded."""
        if self.loss_rank is None:
            return None
        from ddlprof.analysis.loss_curve import loss_curve  # not at the top: many cards are of runs without losses

        return loss_curve(self.loss_rank.training_loss)

    @cached_property
    def experts(self) -> ExpertLoad | None:
        """How tokens are routed to the experts of a mixture; None without one."""
        if not any(rank.data.routed for rank in self.ranks):
            return None
        from ddlprof.analysis.experts import expert_load  # not at the top: few jobs have experts

        return expert_load([rank.data for rank in self.ranks])

    @cached_property
    def amounts(self) -> Amounts | None:
        """How much the ranks' models got in a step; None unless it was noted on each."""
        return amounts_of([of_line(self.phases, rank.data) for rank in self.ranks])

    @property
    def decisive(self) -> Summary:
        """The summary for the verdict, without one or two slow steps that alone would decide it."""
        return self.outliers.rest if self.outliers and self.outliers.left_out else self.summary


def analyse(run: RunData, phase: int | None = None) -> list[Attempt]:
    """The analysis of every attempt of the run, in order.

    `phase`: the number of the phase that it is of (`PhaseLine`), or `phases.LATEST`; None: the one with most time.
    """
    training = run.manifest.training if run.manifest else TrainingFacts()
    attempts = sorted({rank.attempt for rank in run.ranks})
    return [_analyse_attempt([r for r in run.ranks if r.attempt == a], training, phase) for a in attempts]


def headline_attempt(attempts: Sequence[Attempt]) -> Attempt | None:
    """The attempt of the headline: the one with most steady steps, the latest of equal ones."""
    return max(attempts, key=lambda a: (a.summary.steady_steps, a.attempt), default=None)


def _analyse_attempt(ranks: list[RankData], training: TrainingFacts, phase: int | None) -> Attempt:
    phases, window = phases_and_window(ranks, training.loader_workers or 0, phase)
    matching = match_collectives(ranks)
    clocks = clock_offsets(ranks, matching)
    split = split_by_arrival(ranks, matching, clocks)
    inside = _inside_machine(ranks)
    bubbles = Bubbles(ranks, matching.has_messages, "pp" in (training.strategy or "").split("+"))
    analysed = [
        _analyse_rank(rank, partial(split.__getitem__, index), window, phases, inside, bubbles, clocks[rank.node])
        for index, rank in enumerate(ranks)
    ]
    summary = summarise([rank.times for rank in analysed])
    queued = queued_shares(ranks)
    of_phases = differ(ranks) if phases is not None else None
    steady_rows = sum(int(np.count_nonzero(rank.times.steady)) for rank in analysed)
    return Attempt(
        attempt=ranks[0].attempt,
        ranks=analysed,
        window=window,
        summary=summary,
        outliers=find_outliers([rank.times for rank in analysed], summary),
        late_rank=_late_rank(analysed, summary, queued),
        comm=comm_totals([rank.traffic for rank in analysed], steady_rows),
        clocks=clocks,
        queued_shares=queued,
        notes=[
            *window.notes,
            *filter(None, [of_phases]),
            *_summary_notes(summary),
            *_split_notes(analysed, summary, bubbles.note),
        ],
        pipelines=bubbles.pipelines,
        phases=phases,
    )


def _inside_machine(ranks: list[RankData]) -> InsideMachine:
    """A function that estimates how long a collective would take if all its ranks shared a machine."""
    points = next((rank.calibration for rank in ranks if rank.calibration), None)
    if points and not on_device(ranks):  # the calibration timed collectives in host memory
        return SizeSweeps(points).transfer_us
    # Where no machine holds a second rank, no interconnect can be used: all communication is network.
    alone = len({rank.node for rank in ranks}) == ranks[0].header.world_size
    return lambda shape: 0.0 if alone else None


def _analyse_rank(
    rank: RankData,
    match: Callable[[], RankCollectives],
    window: SteadyWindow,
    phases: Phases | None,
    inside: InsideMachine,
    bubbles: Bubbles,
    clock: ClockOffset | None,
) -> RankAnalysis:
    matched = match()
    parts = split_comm(rank, matched, inside, bubbles.of_rank(rank, matched) if bubbles.may_be else None)
    times = {name: rank.steps[f"{name}_ns"] for name in RECORDED}
    times |= {name: getattr(parts, name) for name in COMM_PARTS}
    number = rank.steps["step"]
    flags = rank.steps["flags"] | np.where(window.is_warmup(number), int(Flag.WARMUP), 0)
    profiled = (flags & int(Flag.TRACED) != 0) & (parts.straggler != MISSING)
    profiled &= rank.header.clock == DEVICE_CLOCK  # on the host's clock, TRACED does not mean a profiler window
    usual = [each for each in rank.aggregates if not each.flags & window.unusual_flags]
    if phases is not None:
        usual = [each for each in usual if phases.holds(each.first_step)]
    rank_times = RankTimes(number, times, window.is_steady(number), usual, profiled, parts.by_dimension)
    traffic = rank_traffic(matched, rank_times.steady, rank.groups)
    summary = summarise([rank_times], means_only=True)
    lateness = lateness_of(matched, number, rank_times.steady)
    issued = issued_by(matched, rank_times.steady, rank.places)
    return RankAnalysis(rank, flags, rank_times, parts, traffic, lateness, summary, clock, match, issued)


def _late_rank(ranks: list[RankAnalysis], summary: Summary, queued: dict[int, float]) -> LateRank | None:
    summaries = {rank.data.rank: rank.summary for rank in ranks}
    lateness = {rank.data.rank: rank.lateness for rank in ranks}
    return find_late_rank(summaries, lateness, summary.share("straggler"), queued)


def _summary_notes(summary: Summary) -> list[str]:
    if not summary.left_out:
        return []
    return [f"steady steps of single ranks left out, as not all classes were measured in them: {summary.left_out}"]


def _split_notes(ranks: list[RankAnalysis], summary: Summary, of_bubble: str | None) -> list[str]:
    """A note on why communication could not be split into its parts, unless nearly all of it was."""
    if of_bubble is not None:
        return [of_bubble]
    comm = sum(int(np.maximum(r.times.times["comm"][r.times.steady], 0).sum()) for r in ranks)
    known = sum(int(r.times.times["comm"][r.times.steady & (r.parts.straggler != MISSING)].sum()) for r in ranks)
    if known >= MIN_SPLIT_SHARE * comm:
        if not any("inter" in r.traffic.scopes for r in ranks):
            return []
        if not any((r.parts.network != MISSING).any() for r in ranks):
            return ["interconnect and network are not told apart: nothing was calibrated inside the machines"]
        if not any(r.data.calibration for r in ranks):
            return ["no machine holds a second rank: all that communication costs is network, and interconnect is 0"]
        return []
    if not known and summary.mean_ns("straggler") is not None:
        return [_IN_WINDOWS]
    reasons = sum((r.parts.unsplit_us for r in ranks), Counter[str]())
    why = reasons.most_common(1)[0][0] if reasons else "some waits belong to no recorded collective"
    if not known and why == NO_END and on_device([r.data for r in ranks]):
        return [_NOT_TIMED]
    share = f"{100 * known / comm:.0f} %"
    return [f"waiting for a later rank is told from moving data for {share} of the communication: {why}"]
