"""Runs as attempts of jobs: which of them continue others, and the goodput of each job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlprof.base.text import without_credentials
from ddlprof.model.records import GOOD_ENDS
from ddlprof.model.run_summary import RunSummary
from ddlprof.report.fleet.data import Row
from ddlprof.report.goodput.data import GoodputReport, goodput_report
from ddlprof.report.json_csv import csv_text

_LONGEST_WAIT_S = 7 * 86400.0
"""A run that begins later than this after another is not taken for its continuation, unless it read its checkpoint."""
JOB_COLUMNS = (
    "job", "paths", "attempts", "failures", "goodput", "rank_hours", "usd", "new_steps", "new_steps_h",
    "repeated_steps_h", "checkpoint_h", "evaluation_h", "start_up_h", "waiting_h", "hang_h", "idle_h",
    "lost_to_failures_h", "lost_to_failures_usd", "checkpoint_s", "checkpoint_every_s", "best_checkpoint_every_s",
)  # fmt: skip


@dataclass(frozen=True)
class JobRow:
    """One job with all its runs, by the time they began."""

    rows: Sequence[Row]
    report: GoodputReport

    @property
    def paths(self) -> list[str]:
        """The directories of its runs."""
        return [without_credentials(row.entry.path) for row in self.rows]


def jobs_of(rows: Sequence[Row]) -> list[JobRow]:
    """The jobs of all runs whose attempts are known; the longest job first.

    A run continues another if it read a checkpoint that the other had written, or if both have the same job name and
    arguments, and the other had ended badly before it began.
    """
    chains: list[list[Row]] = []
    known = [row for row in rows if row.summary.trials]
    for row in sorted(known, key=lambda row: row.summary.created_unix_ns):
        chain = next((chain for chain in reversed(chains) if _continues(row.summary, chain)), None)
        if chain is None:
            chains.append([row])
        else:
            chain.append(row)
    jobs = [JobRow(chain, report) for chain in chains if (report := _report(chain)) is not None]
    return sorted(jobs, key=lambda job: -job.report.rank_hours)


def _continues(summary: RunSummary, chain: Sequence[Row]) -> bool:
    earlier = [row.summary for row in chain]
    read = {each.file for trial in summary.trials for each in trial.reads if each.file}
    written = {each.file for run in earlier for trial in run.trials for each in trial.saves if each.file}
    if read & written:
        return True
    last = earlier[-1]
    waited_s = (summary.created_unix_ns - last.ended_unix_ns) / 1e9
    same = (summary.job, summary.arguments, summary.model) == (last.job, last.arguments, last.model)
    return same and bool(summary.job) and last.status not in GOOD_ENDS and 0 <= waited_s < _LONGEST_WAIT_S


def _report(chain: Sequence[Row]) -> GoodputReport | None:
    price = next((row.price for row in chain if row.price), None)
    return goodput_report(chain[0].summary.job, [trial for row in chain for trial in row.summary.trials], price)


def job_record(job: JobRow) -> dict[str, object]:
    """The row by the names of `JOB_COLUMNS`; None for what is not known."""
    report, saving = job.report, job.report.saving
    return {
        "job": report.job,
        "paths": ";".join(job.paths),
        "attempts": len(report.attempts),
        "failures": len(report.failures),
        "goodput": report.goodput,
        "rank_hours": report.rank_hours,
        "usd": report.usd,
        "new_steps": report.new_steps,
        **{f"{name}_h": hours for name, hours in report.parts_h.items()},
        "lost_to_failures_h": report.lost_to_failures_h,
        "lost_to_failures_usd": report.lost_to_failures_usd,
        "checkpoint_s": saving.checkpoint_s if saving else None,
        "checkpoint_every_s": saving.every_s if saving else None,
        "best_checkpoint_every_s": saving.daly_s if saving else None,
    }


def as_csv(jobs: Sequence[JobRow]) -> str:
    """A row for each job."""
    return csv_text(JOB_COLUMNS, map(job_record, jobs))
