"""The contents of a report as plain data: seconds, shares and names, ready for JSON. None means not measured.

`build_report` is the only place that turns records and analysis into a report; the formats only render it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ddlprof.analysis.context import ContextLine, OverheadLine, context_line, overhead_line
from ddlprof.analysis.findings import Finding
from ddlprof.analysis.hang_facts import BUSY, FAILED, KILLED
from ddlprof.analysis.job_time import JobTime, job_time
from ddlprof.analysis.phases import PhaseLine
from ddlprof.analysis.rules.signals import idle_share
from ddlprof.analysis.run import Attempt, RankAnalysis, headline_attempt
from ddlprof.analysis.sources import other_sources
from ddlprof.analysis.summary import Summary
from ddlprof.analysis.verdict import VerdictLine, judge_run
from ddlprof.base.units import count, listed, ranges, seconds_of
from ddlprof.model.classes import TIMES
from ddlprof.model.records import SCHEMA_VERSION, Drop
from ddlprof.report.run.dimensions import DimensionLine, dimension_lines
from ddlprof.report.run.energy import EnergyLine, energy_line
from ddlprof.report.run.experts import ExpertsLine, experts_line
from ddlprof.report.run.loss import LossLine, loss_line
from ddlprof.report.run.pipeline import PipelineLine, pipeline_line
from ddlprof.report.run.rates import Rates, rates_of
from ddlprof.store import RunData

if TYPE_CHECKING:
    from ddlprof.analysis.hang_facts import Hang
    from ddlprof.report.goodput.data import GoodputReport

LISTED_LINES = 10  # source lines in the JSON report; the card shows fewer


@dataclass(frozen=True)
class TimeLine:
    """One class, a part of one, or the step itself, over the steady steps of all ranks."""

    mean_s: float | None
    share: float | None
    median_s: float | None
    p95_s: float | None
    standard_error_s: float | None


@dataclass(frozen=True)
class LateRankLine:
    """The rank that the others wait for; `cause` is the class that takes longer on it, if that is clear."""

    rank: int
    node: int
    last_share: float
    """The share of the time for which ranks wait that they wait for this one."""
    cause: str | None
    own_s: float | None
    typical_s: float | None
    queued_share: float | None = None
    """The share of its time that it waited for a processor, where that explains most of its delay."""
    part: str | None = None
    """The part of `cause` that takes longer, if it is one."""
    phases: Sequence[tuple[int, int]] = ()
    """The first and last steps of the phases in which it is late; empty if it is so all the time."""


@dataclass(frozen=True)
class SampledLine:
    """A place where stack samples saw time in `other`; `what` is as in `model.source_locations`."""

    place: str
    share: float
    what: str


@dataclass(frozen=True)
class OutlierLine:
    """Single steps that took so long that they move the mean, and the mean without them."""

    steps: list[int]
    of_steps: int
    longest_s: float
    name: str
    """The class that took most of these steps' time."""
    mean_without_s: float
    left_out: bool
    """Whether the verdict is about the other steps."""


@dataclass(frozen=True)
class ClockLine:
    """The clock of a node minus that of rank 0's node; None where no collective links the two."""

    node: int
    offset_s: float | None
    bound_s: float | None
    """The largest distance of the true offset from `offset_s`."""
    drift_s: float | None
    """The least by which the offset changed during the run."""


@dataclass(frozen=True)
class RankLine:
    """One rank of one attempt. `means_s`: mean of every class over its steady steps."""

    attempt: int
    rank: int
    host: str
    node: int
    device: str
    status: str
    complete: bool
    steps: int
    steady_steps: int
    last_step: int | None
    silent_s: float
    """The time since the last entry in its file."""
    means_s: dict[str, float | None]


@dataclass(frozen=True)
class ReportData:
    """A whole report. The headline is about `attempt`, of `attempts` in all."""

    run: str
    name: str
    model: str | None
    strategy: str | None
    world_size: int
    nodes: int
    device: str
    attempt: int
    attempts: int
    steps: int
    """The value of the rank with the most, like the next two fields."""
    warmup_steps: int
    steady_steps: int
    times: dict[str, TimeLine]
    outliers: OutlierLine | None
    verdict: VerdictLine | None
    late_rank: LateRankLine | None
    idle_share: float | None
    """The share of the device's time inside a step, from profiler windows."""
    other_lines: list[SampledLine]
    other_samples: int
    context: ContextLine
    looking: OverheadLine
    clocks: list[ClockLine]
    """The clocks, one for each node."""
    ranks: list[RankLine]
    notes: list[str]
    manifest: dict[str, Any] | None
    findings: list[Finding] = field(default_factory=list)
    """The findings of the rules, the most worthwhile first."""
    job: JobTime | None = None
    """The parts of the wall time of the whole job; None where they are not known."""
    layout: str | None = None
    """The degrees of parallelism, such as `tp2 x fsdp4`; None where not known, or nothing is divided."""
    dimensions: list[DimensionLine] = field(default_factory=list)
    """The communication by dimension of the layout; empty where no dimension is known."""
    loss: LossLine | None = None
    """The loss over the training; None where no loss was recorded."""
    pipeline: PipelineLine | None = None
    """The pipelines that the model is divided into; None where there is none."""
    experts: ExpertsLine | None = None
    """The all-to-alls of experts; None where there are none."""
    rates: Rates = field(default_factory=Rates)
    """How fast the job trains."""
    goodput: GoodputReport | None = None
    """The goodput over all attempts, without prices; None where there is one attempt only."""
    hang: Hang | None = None
    """Why the latest attempt stood still; None where it did not."""
    energy: EnergyLine | None = None
    """The energy that it takes; None where nothing tells."""
    phases: list[PhaseLine] = field(default_factory=list)
    """The phases of the training; empty, and left out of the JSON report, of a training in one phase."""
    phase: int | None = None
    """The number of the phase that the report is of; so of this."""
    schema: int = field(default=SCHEMA_VERSION)

    @property
    def step_s(self) -> float | None:
        """The mean steady step; None where there is none."""
        return self.times["step"].mean_s if self.times else None

    @property
    def headline_ranks(self) -> list[RankLine]:
        """The ranks of the attempt that the headline is about."""
        return [rank for rank in self.ranks if rank.attempt == self.attempt]


def build_report(
    run: RunData, attempts: Sequence[Attempt], now_unix_ns: int, carbon_g_per_kwh: float | None = None
) -> ReportData:
    """The report of an analysed run, as seen at `now_unix_ns`. `carbon_g_per_kwh`: the CO2 of a kWh where it ran."""
    headline = headline_attempt(attempts)
    ranks = headline.ranks if headline else []
    manifest = headline.manifest(run.manifest) if headline else run.manifest
    phases = headline.phases if headline else None
    calibration = run.manifest.calibration if run.manifest else None
    overhead = overhead_line([r.data for r in ranks], headline.summary if headline else None, calibration)
    nodes = len({r.data.node for r in ranks})
    sources = other_sources(ranks)
    context = context_line([r.data for r in ranks], headline.queued_share if headline else None)
    job = job_time(headline) if headline else None
    times, rates = _times(headline.summary) if headline else {}, rates_of(manifest, headline)
    judged = None
    if headline is not None:
        judged = judge_run(manifest, headline, sources, overhead.hooks_s_per_step, context.cpu_percent, job, run.step)
    hang = _hang(run)
    return ReportData(
        run=run.typed,
        name=run.name,
        model=manifest.model.name if manifest else None,
        strategy=manifest.training.strategy if manifest else None,
        world_size=ranks[0].data.header.world_size if ranks else manifest.world_size if manifest else 0,
        nodes=nodes,
        device=_usual([r.data.header.device for r in ranks]),
        attempt=headline.attempt if headline else 0,
        attempts=len(attempts),
        steps=max((r.data.step_count for r in ranks), default=0),
        warmup_steps=int(headline.window.warmup.sum()) if headline else 0,
        steady_steps=headline.steady_steps if headline else 0,
        times=times,
        outliers=_outliers(headline) if headline else None,
        verdict=_verdict(judged.verdict, hang, (job.checkpoints if job else None) or 0) if judged else None,
        late_rank=_late_rank(headline) if headline else None,
        idle_share=idle_share(headline) if headline else None,
        other_lines=[SampledLine(s.place.text, s.share, s.place.what) for s in sources.shares[:LISTED_LINES]],
        other_samples=sources.samples,
        context=context,
        looking=overhead,
        clocks=_clocks(headline) if headline else [],
        ranks=[_rank_line(r, now_unix_ns) for attempt in attempts for r in attempt.ranks],
        notes=_notes(run, headline),
        manifest=asdict(run.manifest) if run.manifest else None,
        findings=judged.findings if judged else [],
        job=job,
        layout=manifest.layout.text(manifest.training.strategy) if manifest and manifest.layout else None,
        dimensions=dimension_lines(headline) if headline else [],
        loss=loss_line(headline) if headline else None,
        pipeline=pipeline_line(headline) if headline else None,
        experts=experts_line(headline) if headline else None,
        goodput=_goodput(run.name, attempts),
        hang=hang,
        rates=rates,
        energy=energy_line(attempts, headline, rates, carbon_g_per_kwh),
        phases=phases.lines if phases else [],
        phase=phases.shown.number if phases else None,
    )


def _verdict(verdict: VerdictLine, hang: Hang | None, saved: int) -> VerdictLine:
    """The verdict, whose advice no rule gave comes after what stopped the training. `saved`: its checkpoints."""
    if hang is None or hang.kind == BUSY or verdict.rule is not None:
        return verdict
    action = "first mend what stopped the training; how fast its steps were comes after that"
    if saved and hang.kind in (FAILED, KILLED):
        action += (
            f"; it had written {count(saved, 'checkpoint')}: torchrun --max-restarts=3 starts its ranks again after "
            "a failure, and a script that resumes from there loses less"
        )
    return replace(verdict, next=action)


def _hang(run: RunData) -> Hang | None:
    if not run.standing:
        return None
    from ddlprof.analysis.hangs import hang_of  # not at the top: few runs stood still

    return hang_of(run)


def _goodput(name: str, attempts: Sequence[Attempt]) -> GoodputReport | None:
    if len(attempts) < 2:
        return None
    from ddlprof.analysis.trials import trials_of
    from ddlprof.report.goodput.data import goodput_report  # it needs formulas of the recommender

    return goodput_report(name, trials_of(attempts))


def _usual(values: list[str]) -> str:
    return Counter(values).most_common(1)[0][0] if values else ""


def _times(summary: Summary) -> dict[str, TimeLine]:
    spreads = summary.spreads
    return {
        name: TimeLine(
            mean_s=seconds_of(spreads[name].mean_ns),
            share=summary.share(name),
            median_s=seconds_of(spreads[name].median_ns),
            p95_s=seconds_of(spreads[name].p95_ns),
            standard_error_s=seconds_of(spreads[name].standard_error_ns),
        )
        for name in TIMES
    }


def _outliers(headline: Attempt) -> OutlierLine | None:
    found = headline.outliers
    if found is None:
        return None
    mean_without_s = seconds_of(found.rest.mean_ns("step")) or 0.0
    return OutlierLine(found.steps, found.of_steps, found.longest_ns / 1e9, found.name, mean_without_s, found.left_out)


def _late_rank(headline: Attempt) -> LateRankLine | None:
    late = headline.late_rank
    if late is None:
        return None
    node = next(r.data.node for r in headline.ranks if r.data.rank == late.rank)
    own, typical = seconds_of(late.own_ns), seconds_of(late.typical_ns)
    return LateRankLine(
        late.rank, node, late.last_share, late.cause, own, typical, late.queued_share, late.part, late.phases
    )


def _clocks(headline: Attempt) -> list[ClockLine]:
    return [
        ClockLine(node, seconds_of(c.offset_ns), seconds_of(c.bound_ns), seconds_of(c.drift_ns))
        if c is not None
        else ClockLine(node, None, None, None)
        for node, c in headline.clocks.items()
    ]


def _rank_line(rank: RankAnalysis, now_unix_ns: int) -> RankLine:
    data = rank.data
    return RankLine(
        attempt=data.attempt,
        rank=data.rank,
        host=data.header.host,
        node=data.node,
        device=data.header.device,
        status=data.status,
        complete=data.complete,
        steps=data.step_count,
        steady_steps=rank.summary.steady_steps,
        last_step=int(data.steps["step"][-1]) if len(data.steps) else None,
        silent_s=max(now_unix_ns - data.last_seen_unix_ns, 0) / 1e9,
        means_s={name: seconds_of(rank.summary.mean_ns(name)) for name in TIMES},
    )


def _losses(ranks: Sequence[RankAnalysis]) -> Iterator[tuple[str, list[int]]]:
    """Notes on data that could not be read, summed over all ranks, with the ranks that were affected."""
    found: dict[tuple[str, str], list[tuple[int, Drop]]] = {}
    for rank in ranks:
        for drop in rank.data.drops:
            found.setdefault((drop.source, drop.many), []).append((rank.data.rank, drop))
    for drops in found.values():
        first, count = drops[0][1], sum(drop.count for _, drop in drops)
        which = first.one if count == 1 else first.many
        yield f"{first.source}: {count} {which}: {first.reason}{' (the first)' * (count > 1)}", [r for r, _ in drops]


def _notes(run: RunData, headline: Attempt | None) -> list[str]:
    """Notes on what was not measured or could not be read; equal notes of several ranks are given once."""
    unreadable: dict[str, list[str]] = {}
    for note in run.notes:
        unreadable.setdefault(note.message, []).append(note.source)
    notes = [f"{listed(sources)}: {message}" for message, sources in unreadable.items()]
    if headline is None:
        return notes
    ranks = headline.ranks
    said: dict[str, list[int]] = {}
    for rank in ranks:
        for note in rank.data.notes:
            said.setdefault(f"{note.source}: {note.message}", []).append(rank.data.rank)
    for text, of in [*said.items(), *_losses(ranks)]:
        alone = f" (rank {of[0]})" if len(of) == 1 else f" ({len(of)} ranks)"
        notes.append(text if len(of) == len(ranks) else text + alone)
    if ranks and len(ranks) < ranks[0].data.header.world_size:
        present = ranges(rank.data.rank for rank in ranks)
        notes.append(f"{len(ranks)} of {ranks[0].data.header.world_size} ranks left a file: {present}")
    if headline.summary.steady_steps and headline.summary.mean_ns("data") is None and "data: " not in " ".join(notes):
        notes.append(
            "data: no DataLoader was used, so waiting for input is in other or compute; "
            "--data-call MODULE:FUNCTION names what makes batches"
        )
    return notes + headline.notes
