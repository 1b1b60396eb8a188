"""The jobs of a fleet with their goodput, as a table for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ddlprof.base.text import without_credentials
from ddlprof.base.units import NOT_KNOWN, count, duration, figure, percent
from ddlprof.report.fleet.jobs import JobRow, as_csv, job_record
from ddlprof.report.json_csv import json_text
from ddlprof.report.text import aligned, text_of

JOBS_SCHEMA = 1
_PARTS = ("repeated_steps", "checkpoint", "start_up", "waiting", "hang")


@dataclass(frozen=True)
class Jobs:
    """The jobs to show, how many runs are left out as their attempts are not known, and notes of the search."""

    jobs: Sequence[JobRow]
    unknown: int
    left_out: Sequence[str] = field(default=())
    top: int = 100


def as_table(shown: Jobs) -> str:
    """A line for each job, and the total."""
    heads = ["JOB", "RUNS", "ATTEMPTS", "FAILED", "HOURS", "GOODPUT", "AGAIN", "SAVING", "START-UP", "WAITING", "HANGS",
             "LOST TO FAILURES h", "USD", "SAVES EVERY", "BEST"]  # fmt: skip
    rows = [heads, *(_cells(job) for job in shown.jobs[: shown.top])]
    lines = [*aligned(rows, right=range(1, len(heads))), "", *_total(shown.jobs)]
    if (more := len(shown.jobs) - shown.top) > 0:
        lines.append(f"Note   not shown: {count(more, 'more job')} (--top N, --format csv)")
    return text_of([*lines, *(f"Note   {note}" for note in _notes(shown))])


def as_json(shown: Jobs) -> str:
    """One object with a list of jobs and what was left out."""
    jobs = [{**job_record(job), "paths": [without_credentials(path) for path in job.paths]} for job in shown.jobs]
    return json_text({"schema": JOBS_SCHEMA, "jobs": jobs, "notes": _notes(shown)})


def _cells(job: JobRow) -> list[str]:
    report, saving = job.report, job.report.saving
    shares = [percent(report.parts_h[name] / report.rank_hours) if report.rank_hours else NOT_KNOWN for name in _PARTS]
    share = NOT_KNOWN if report.goodput is None else percent(report.goodput)
    return [
        report.job, str(len(job.rows)), str(len(report.attempts)), str(len(report.failures)),
        figure(report.rank_hours), share, *shares, figure(report.lost_to_failures_h),
        figure(report.lost_to_failures_usd), duration(saving.every_s) if saving else NOT_KNOWN,
        duration(saving.daly_s) if saving else NOT_KNOWN,
    ]  # fmt: skip


def _total(jobs: Sequence[JobRow]) -> list[str]:
    hours = sum(job.report.rank_hours for job in jobs)
    useful = sum((job.report.goodput or 0.0) * job.report.rank_hours for job in jobs)
    lost = sum(job.report.lost_to_failures_h for job in jobs)
    if not hours:
        return []
    failures = sum(len(job.report.failures) for job in jobs)
    return [
        f"Total  {count(len(jobs), 'job')}, {figure(hours)} hours of ranks: goodput {percent(useful / hours)};"
        f" {count(failures, 'failure')} cost {figure(lost)} h"
    ]


def _notes(shown: Jobs) -> list[str]:
    notes = list(shown.left_out)
    if shown.unknown:
        notes.append(f"runs whose attempts are not known: {shown.unknown:,} (ddlprof report RUN --save-summary)")
    return notes


FORMATS = {"table": as_table, "json": as_json, "csv": lambda shown: as_csv(shown.jobs)}
