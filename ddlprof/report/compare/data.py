"""The result of `ddlprof compare` as plain data: seconds, shares and names, ready for JSON. None means not measured.

`build` is the only place that turns analysed runs into it; the formats only render it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from ddlprof.analysis.changes import Change, changes, facts_of
from ddlprof.analysis.compare import ERROR, Difference, Gate, RunTimes, check_gates, compare, measured, usual_noise
from ddlprof.analysis.compare_job import JobTimes, compare_jobs, evaluations_ns, job_times, same_work
from ddlprof.analysis.job_time import job_time
from ddlprof.analysis.pauses import collector_pauses
from ddlprof.analysis.run import Attempt, headline_attempt
from ddlprof.analysis.shifts import Shift
from ddlprof.base.errors import UserError
from ddlprof.base.units import seconds_of
from ddlprof.model.manifest import TrainingFacts
from ddlprof.report.run.data import LateRankLine, ReportData
from ddlprof.report.run.formats import Analysed

COMPARE_SCHEMA_VERSION = 1
STEP, SAMPLE = "step", "sample"


@dataclass(frozen=True)
class ShiftLine:
    """How much longer a time is in B, with the interval of the difference.

    Shares are of A's step, of A's job for parts of that, and of the same time in A in `typical` and `own` of a step.
    """

    difference_s: float
    low_s: float | None
    high_s: float | None
    share: float | None
    low_share: float | None
    high_share: float | None
    word: str
    """faster, slower, none (the interval holds 0) or too few steps."""


@dataclass(frozen=True)
class RowLine:
    """One class, a part of one, or the step, in A and in B."""

    name: str
    a_s: float | None
    b_s: float | None
    word: str
    """The word of `mean`, or "not measured"."""
    mean: ShiftLine | None
    typical: ShiftLine | None
    """The difference without single slow steps."""
    own: ShiftLine | None
    """The difference of the step without the main thread's waits for a processor; None where those were short."""


@dataclass(frozen=True)
class RunLine:
    """One run of a side."""

    run: str
    name: str
    model: str | None
    attempt: int
    attempts: int
    world_size: int
    complete_ranks: int
    unreadable: int
    """The number of files that are damaged or missing."""
    nodes: int
    device: str
    steps: int
    """The steps of the rank with most of them."""
    mean_steps: float
    """The mean of all ranks where a finding says that they make different numbers of steps; else as `steps`."""
    steady_steps: int
    step_s: float | None
    global_batch: int | None
    verdict: str | None
    late_rank: LateRankLine | None
    cpu_percent: float | None
    """The share of the time that the host's processors were busy, in per cent."""
    queued_share: float | None
    """The share of the time that the main thread waited for a processor, of the rank with the most."""
    slow_steps: list[int]
    """Single steps that took so long that they move the mean."""
    collector_share: float | None = None
    """The share of a mean step for which the garbage collector pauses it, on the rank with most of that."""


@dataclass(frozen=True)
class SideLine:
    """One side of the comparison, A or B."""

    runs: list[RunLine]
    samples_per_s: float | None
    """The mean over the runs; None where a batch is not known."""


@dataclass(frozen=True)
class JobLine:
    """The wall time of the job and its parts."""

    rows: list[RowLine]
    """The job, and each part that took time on one side. Shares are of A's job, and seconds those of a whole job."""
    work: int
    """The number of steps, or of samples, that the times are for: the mean of all ranks. Where workers or ranks train
    on the same samples as others, and both sides did as much without that, only once counts; so in `done`."""
    same_work: bool
    """Whether both sides did that much. If not, what grows with the work is taken for the work of A."""
    done: tuple[int, int]
    """The steps, or samples, that a job of A and one of B did, in the mean; so in the next field."""
    ended_s: tuple[float, float]
    """The wall time of a job of A and of one of B as they ran, with as much work as they did."""

    @property
    def whole(self) -> RowLine:
        """The row of the job."""
        return self.rows[0]


@dataclass(frozen=True)
class FindingLine:
    """A finding of the rules on one side only."""

    rule: str
    title: str
    side: str
    """The side that has the finding: A if it has gone, B if it is new."""


@dataclass(frozen=True)
class GateLine:
    """A limit of --fail-on. Seconds are those of the comparison's basis."""

    gate: str
    name: str
    state: str
    """broken, kept or within the noise."""
    limit_s: float
    difference_s: float


@dataclass(frozen=True)
class ComparisonData:
    """A whole comparison."""

    basis: str
    """The unit of work that the times are of: a step, or a sample where the global batches differ."""
    a: SideLine
    b: SideLine
    rows: list[RowLine]
    changes: list[Change]
    findings: list[FindingLine]
    gates: list[GateLine]
    noise: float | None
    """The assumed noise between equal runs, as a share of the step; None where several runs a side show it."""
    step_confidence: float
    """The confidence level of the step's interval; where the step has two intervals, of both together."""
    others_confidence: float
    """The confidence level of the intervals of all other rows together."""
    job: JobLine | None = None
    """None where the wall time of a whole job is not known."""
    schema: int = field(default=COMPARE_SCHEMA_VERSION)

    @property
    def step(self) -> RowLine:
        return self.rows[0]

    @property
    def broken(self) -> bool:
        return any(gate.state == "broken" for gate in self.gates)


def build(
    a: Sequence[Analysed], b: Sequence[Analysed], gates: Sequence[Gate], noise: float | None = None
) -> ComparisonData:
    """Compares the runs of B with those of A. Raises UserError where one has no step or a gate cannot be judged.

    `noise`: the difference between equal runs, as a share of the step; None: the usual one.
    """
    attempts = [[_headline(run) for run in side] for side in (a, b)]
    batches = [list(map(_global_batch, side, of)) for side, of in zip((a, b), attempts, strict=True)]
    lines = [list(map(_run_line, *side)) for side in zip((a, b), attempts, batches, strict=True)]
    basis = _basis(batches)
    times = [
        [
            measured(
                attempt,
                (batch or 1) if basis == SAMPLE else 1,
                usual_noise(line.queued_share, line.cpu_percent) if noise is None else noise,
            )
            for attempt, batch, line in zip(*side, strict=True)
        ]
        for side in zip(attempts, batches, lines, strict=True)
    ]
    found = compare(times[0], times[1])
    jobs = [
        [_job(attempt, run, line, work_of_step(line, basis)) for attempt, run, line in zip(*side, strict=True)]
        for side in zip(attempts, times, lines, strict=True)
    ]
    copies = [list(map(_copies, *side)) for side in zip((a, b), attempts, strict=True)]
    once = [list(map(_once, *side)) for side in zip(jobs, copies, strict=True)]
    jobs = once if same_work(*once) else jobs
    judged = check_gates(gates, found)
    facts = [
        [facts_of(run.run, attempt) for run, attempt in zip(*side, strict=True)]
        for side in zip((a, b), attempts, strict=True)
    ]
    return ComparisonData(
        basis=basis,
        a=_side_line(lines[0]),
        b=_side_line(lines[1]),
        rows=_rows(found),
        changes=changes(facts[0], facts[1]),
        findings=_findings([run.report for run in a], [run.report for run in b]),
        gates=[GateLine(j.gate.text, j.gate.name, j.state, j.limit_ns / 1e9, j.difference_ns / 1e9) for j in judged],
        noise=max((side[0].noise for side in times if len(side) == 1), default=None),
        step_confidence=1 - ERROR,
        others_confidence=1 - ERROR,
        job=_job_line(jobs[0], jobs[1]),
    )


def _job_line(a: Sequence[JobTimes | None], b: Sequence[JobTimes | None]) -> JobLine | None:
    found = compare_jobs(a, b)
    if not found or a[0] is None:
        return None
    sides = [[job for job in side if job is not None] for side in (a, b)]
    done_a, done_b = (round(fmean(job.work for job in side)) for side in sides)
    ended_a, ended_b = (fmean(job.wall for job in side) / 1e9 for side in sides)
    return JobLine(_rows(found), round(a[0].work), same_work(a, b), (done_a, done_b), (ended_a, ended_b))


def _headline(run: Analysed) -> Attempt:
    attempt = headline_attempt(run.attempts)
    if attempt is None or not attempt.steady_steps:
        raise UserError(f"{run.run.typed}: no step was measured; see: ddlprof report {run.run.typed}")
    return attempt


def _global_batch(run: Analysed, attempt: Attempt) -> int | None:
    """The samples of one step of the whole job."""
    manifest = attempt.manifest(run.run.manifest)
    training = manifest.training if manifest else TrainingFacts()
    if training.global_batch:
        return training.global_batch
    if not training.batch_per_rank:
        return None
    ranks = training.data_parallel_ranks or attempt.ranks[0].data.header.world_size
    return training.batch_per_rank * (training.micro_batches or 1) * ranks


def _copies(run: Analysed, attempt: Attempt) -> int:
    """How often the job trains on each sample in place of once, as its findings say."""
    found, manifest = {each.rule for each in run.report.findings}, attempt.manifest(run.run.manifest)
    workers = manifest.training.loader_workers if manifest and "repeated_samples" in found else None
    return (workers or 1) * (run.report.world_size if "same_samples" in found else 1)


def work_of_step(run: RunLine, basis: str) -> int:
    """What a step counts for as work: its samples, or one step."""
    return (run.global_batch or 1) if basis == SAMPLE else 1


def _job(attempt: Attempt, times: RunTimes, run: RunLine, of_step: int) -> JobTimes | None:
    """The times of a job; its work is what its ranks did in the mean where one has more batches than the others."""
    job = job_times(job_time(attempt), times, evaluations_ns(attempt))
    return job and replace(job, work=run.mean_steps * of_step)


def _once(job: JobTimes | None, copies: int) -> JobTimes | None:
    """The same job, whose work is what it trained on once."""
    return job and replace(job, work=job.work / copies)


def _basis(batches: Sequence[Sequence[int | None]]) -> str:
    """A sample where all batches are known and differ, else a step."""
    known = {batch for side in batches for batch in side}
    return SAMPLE if len(known) > 1 and None not in known else STEP


def _run_line(run: Analysed, attempt: Attempt, batch: int | None) -> RunLine:
    report = run.report
    uneven = any(each.rule == "uneven_steps" for each in report.findings)
    return RunLine(
        run=report.run,
        name=report.name,
        model=report.model,
        attempt=report.attempt,
        attempts=report.attempts,
        world_size=report.world_size,
        complete_ranks=sum(rank.complete for rank in report.headline_ranks),
        unreadable=len(run.run.notes),
        nodes=report.nodes,
        device=report.device,
        steps=report.steps,
        mean_steps=fmean(rank.data.step_count for rank in attempt.ranks) if uneven else report.steps,
        steady_steps=report.steady_steps,
        step_s=report.step_s,
        global_batch=batch,
        verdict=report.verdict.name if report.verdict else None,
        late_rank=report.late_rank,
        cpu_percent=report.context.cpu_percent,
        queued_share=attempt.queued_share,
        slow_steps=report.outliers.steps if report.outliers else [],
        collector_share=_collector_share(report, attempt),
    )


def _collector_share(report: ReportData, attempt: Attempt) -> float | None:
    pauses = collector_pauses(attempt.ranks)
    return pauses.seconds / report.step_s if pauses is not None and report.step_s else None


def _side_line(runs: list[RunLine]) -> SideLine:
    rates = [run.global_batch / run.step_s for run in runs if run.global_batch and run.step_s]
    return SideLine(runs, sum(rates) / len(rates) if len(rates) == len(runs) else None)


def _rows(found: Sequence[Difference]) -> list[RowLine]:
    """The lines of the first, of which all shares are where nothing else is said, and of its parts."""

    def line(shift: Shift | None) -> ShiftLine | None:
        if shift is None:
            return None
        of_ns = shift.of_ns or found[0].a_ns

        def share(ns: float | None) -> float | None:
            return ns / of_ns if ns is not None and of_ns else None

        return ShiftLine(
            difference_s=shift.ns / 1e9,
            low_s=seconds_of(shift.low_ns),
            high_s=seconds_of(shift.high_ns),
            share=share(shift.ns),
            low_share=share(shift.low_ns),
            high_share=share(shift.high_ns),
            word=shift.word,
        )

    return [
        RowLine(
            each.name,
            seconds_of(each.a_ns),
            seconds_of(each.b_ns),
            each.word,
            line(each.mean),
            line(each.typical),
            line(each.own),
        )
        for each in found
    ]


def _findings(a: Sequence[ReportData], b: Sequence[ReportData]) -> list[FindingLine]:
    """The findings of most runs of one side and of none of the other."""
    of_a, of_b = (Counter(finding.rule for report in side for finding in report.findings) for side in (a, b))
    titles = {finding.rule: finding.title for report in (*a, *b) for finding in report.findings}
    gone = [rule for rule, count in of_a.items() if 2 * count > len(a) and not of_b[rule]]
    new = [rule for rule, count in of_b.items() if 2 * count > len(b) and not of_a[rule]]
    return [FindingLine(rule, titles[rule], side) for side, rules in (("A", gone), ("B", new)) for rule in rules]
