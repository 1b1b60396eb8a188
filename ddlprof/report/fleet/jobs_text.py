"""The jobs of a fleet with their goodput."""

from __future__ import annotations

from collections.abc import Sequence

from ddlprof.analysis.goodput import GOODPUT_PARTS
from ddlprof.base.units import count, duration, figure, percent
from ddlprof.report.fleet.formats import FleetLines
from ddlprof.report.fleet.jobs import JobRow, jobs_of
from ddlprof.report.table import Column, Table, fields


def _share(head: str, part: str) -> Column[JobRow]:
    """A part of the time of all machines, as a share of it."""

    def share(job: JobRow) -> str | None:
        return percent(job.report.parts_h[part] / job.report.rank_hours) if job.report.rank_hours else None

    return Column(head, share)


def _goodput(job: JobRow) -> str | None:
    return None if job.report.goodput is None else percent(job.report.goodput)


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


JOBS = FleetLines(
    noun="job",
    key="jobs",
    lines_of=jobs_of,
    table=Table[JobRow](
        *fields("job=report.job"),
        Column("paths", lambda job: ";".join(job.paths)),
        Column("attempts", lambda job: len(job.report.attempts)),
        Column("failures", lambda job: len(job.report.failures)),
        *fields("goodput=report.goodput", "rank_hours=report.rank_hours", "usd=report.usd"),
        *fields("new_steps=report.new_steps", *(f"{name}_h=report.parts_h.{name}" for name in GOODPUT_PARTS)),
        *fields("lost_to_failures_h=report.lost_to_failures_h", "lost_to_failures_usd=report.lost_to_failures_usd"),
        *fields("checkpoint_s=report.saving.checkpoint_s", "checkpoint_every_s=report.saving.every_s"),
        *fields("best_checkpoint_every_s=report.saving.daly_s"),
    ),
    shown=Table[JobRow](
        Column("JOB", "report.job", words=True),
        Column("RUNS", lambda job: len(job.rows)),
        Column("ATTEMPTS", lambda job: len(job.report.attempts)),
        Column("FAILED", lambda job: len(job.report.failures)),
        Column("HOURS", "report.rank_hours"),
        Column("GOODPUT", _goodput),
        _share("REDONE", "repeated_steps"),
        _share("CHECKPOINTS", "checkpoint"),
        _share("START-UP", "start_up"),
        _share("WAITING", "waiting"),
        _share("HANGS", "hang"),
        Column("LOST TO FAILURES h", "report.lost_to_failures_h"),
        Column("USD", "report.lost_to_failures_usd"),
        Column("SAVES EVERY", lambda job: duration(job.report.saving.every_s) if job.report.saving else None),
        Column("BEST", lambda job: duration(job.report.saving.daly_s) if job.report.saving else None),
    ),
    lists={"paths": lambda job: job.paths},
    below=_total,
    notes=lambda listing: listing.notes("attempts", lambda row: row.summary.trials),
)
