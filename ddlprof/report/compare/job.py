"""The sentences and rows of a comparison that are about the wall time of the job."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from ddlprof.analysis.shifts import FASTER, SLOWER
from ddlprof.base.units import Scale, tenths_of_percent
from ddlprof.report.compare.data import SAMPLE, ComparisonData, JobLine, RowLine, work_of_step
from ddlprof.report.compare.figures import change, interval_of, signed
from ddlprof.report.run.text import NAMES

_STEPS = ("steps", "warm_up")
"""The parts that the table of the step is about."""
_SHORT_S = 100.0
_LEAST_SHOWN = 0.01
_UNEVEN = 1.1
"""A rank with so many times the steps of the mean makes a job longer whose steps are as long."""


def differs(data: ComparisonData) -> bool:
    """Whether the wall times of the jobs differ by more than noise."""
    return data.job is not None and data.job.whole.word in (FASTER, SLOWER)


def scale_of(job: JobLine) -> Scale:
    """The scale of all times of the job: seconds."""
    longest = max(job.whole.a_s or 0.0, job.whole.b_s or 0.0)
    return Scale("s", 1, 2 if longest < _SHORT_S else 1)


def size(job: JobLine) -> str:
    """`76.6 % faster in the job`."""
    share = job.whole.mean.share if job.whole.mean else 0.0
    return f"{tenths_of_percent(abs(share or 0.0))} {job.whole.word} in the job"


def figures(job: JobLine) -> str:
    """`2.7 s in all instead of 11.5`, with the interval."""
    row, scale = job.whole, scale_of(job)
    interval = interval_of(row.mean) if row.mean else ""
    return f"{scale.time(row.b_s or 0.0)} in all instead of {scale.number(row.a_s or 0.0)} ({interval})"


def moved(job: JobLine) -> list[RowLine]:
    """The parts that differ, the largest difference first."""
    rows = [row for row in job.rows[1:] if row.word in (FASTER, SLOWER) and row.mean]
    return sorted(rows, key=lambda row: -abs(row.mean.difference_s) if row.mean else 0.0)


def unequal_work(data: ComparisonData) -> str | None:
    """`B's job ended after 2.98 s with 160 steps, A's after 4.14 with 320`; None where both did as much in the mean."""
    job = data.job
    if job is None or job.done[0] == job.done[1]:
        return None
    (a_s, b_s), (a, b), scale, unit = job.ended_s, job.done, scale_of(job), _unit(data)
    return f"B's job ended after {scale.time(b_s)} with {b:,} {unit}, A's after {scale.number(a_s)} with {a:,}"


def _unit(data: ComparisonData) -> str:
    return "samples" if data.basis == SAMPLE else "steps"


def parts_besides_a_step(data: ComparisonData) -> list[str]:
    """`evaluation is faster (-37.8 % of the job)`: the parts that differ, which a step does not tell."""
    job = data.job
    if job is None:
        return []
    others = next(_other_steps(data), None) is not None  # then a step may be as long, and there are more of them
    rows = [row for row in moved(job) if row.name not in _STEPS or (others and row.name == _STEPS[0])]
    return [f"{label(row)} is {row.word} ({change(row.mean)} of the job)" for row in rows if row.mean]


def why(job: JobLine) -> str | None:
    """The parts by which the jobs differ; None where no part alone does."""
    scale = scale_of(job)
    amounts = [
        f"{label(row)} {signed(row.mean.difference_s, scale)} {scale.unit} ({change(row.mean)} of the job)"
        for row in moved(job)
        if row.mean
    ]
    return f"in the job: {', '.join(amounts)}" if amounts else None


def label(row: RowLine) -> str:
    """The name of a part of the job."""
    return NAMES.get(row.name, row.name)


def rows_shown(job: JobLine) -> list[RowLine]:
    """The job, and the parts that are no rounding of it."""
    return [job.whole, *(row for row in job.rows[1:] if _is_shown(row, job))]


def _is_shown(row: RowLine, job: JobLine) -> bool:
    return max(row.a_s or 0.0, row.b_s or 0.0) > _LEAST_SHOWN * (job.whole.a_s or 0.0)


def notes(data: ComparisonData) -> Iterator[str]:
    """What a reader must know of the jobs' times."""
    yield from _other_steps(data)
    if data.job is not None and not data.job.same_work:
        work = f"{data.job.work:,} {_unit(data)}"
        yield f"the jobs did not do as much: their times are those of {work}, the first run of A"


def _other_steps(data: ComparisonData) -> Iterator[str]:
    """Which side makes more steps than its work is: ranks of other lengths, or the same work several times."""
    unit = _unit(data)
    for letter, side, done in zip("AB", (data.a, data.b), data.job.done if data.job else (), strict=False):
        most = fmean(run.steps * work_of_step(run, data.basis) for run in side.runs)
        mean = fmean(run.mean_steps * work_of_step(run, data.basis) for run in side.runs)
        if most >= _UNEVEN * mean:
            yield f"a rank of {letter} makes {most:,.0f} {unit}: the work of {letter} is the mean of all, {mean:,.0f}"
        if done and mean >= 1.5 * done:
            yield f"{letter} trains on each sample {mean / done:.2g} times: {mean:,.0f} {unit} are taken for {done:,}"
