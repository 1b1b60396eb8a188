"""The jobs of a fleet with their goodput, as a table for people and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddlprof.base.text import text_of
from ddlprof.base.units import NOT_KNOWN, count, duration, figure, percent
from ddlprof.report.fleet.formats import Listing
from ddlprof.report.fleet.jobs import JobRow, as_csv, job_record, jobs_of
from ddlprof.report.json_csv import json_text
from ddlprof.report.text import aligned

JOBS_SCHEMA = 1
_PARTS = ("repeated_steps", "checkpoint", "start_up", "waiting", "hang")


def as_table(listing: Listing) -> str:
    """A line for each job, and the total."""
    heads = ["JOB", "RUNS", "ATTEMPTS", "FAILED", "HOURS", "GOODPUT", "AGAIN", "SAVING", "START-UP", "WAITING", "HANGS",
             "LOST TO FAILURES h", "USD", "SAVES EVERY", "BEST"]  # fmt: skip
    jobs = jobs_of(listing.rows)
    lines = [*aligned([heads, *(_cells(job) for job in jobs[: listing.top])], range(1, len(heads))), "", *_total(jobs)]
    if (more := len(jobs) - listing.top) > 0:
        lines.append(f"Note   not shown: {count(more, 'more job')} (--top N, --format csv)")
    return text_of([*lines, *(f"Note   {note}" for note in _notes(listing))])


def as_json(listing: Listing) -> str:
    """One object with a list of jobs and what was left out."""
    jobs = [{**job_record(job), "paths": job.paths} for job in jobs_of(listing.rows)]
    return json_text({"schema": JOBS_SCHEMA, "jobs": jobs, "notes": _notes(listing)})


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


def _notes(listing: Listing) -> list[str]:
    unknown = sum(not row.summary.trials for row in listing.rows)
    words = f"{count(unknown, 'run')} without attempts, left out: ddlprof report --save-summary RUN adds them"
    return [*listing.left_out, *([words] if unknown else [])]


FORMATS: dict[str, Callable[[Listing], str]] = {
    "table": as_table,
    "json": as_json,
    "csv": lambda listing: as_csv(jobs_of(listing.rows)),
}
