"""Simulations as CSV files: `summary.csv`, a row a simulation, and `jobs.csv`, a row a job of each; and over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ddlprof.cluster.sweep.figures import CaseResult, Figures
from ddlprof.report.csv_cells import csv_text

CASE_COLUMNS = ("policy", "seed", "load", "predictable")
SUMMARY_COLUMNS = (*CASE_COLUMNS, "offered_load", *Figures.__dataclass_fields__)
JOB_COLUMNS = (
    *CASE_COLUMNS, "job_id", "model", "gpus", "submit_s", "first_start_s", "end_s", "completion_s", "queueing_s",
    "ideal_s", "gpu_h", "comm_gpu_h", "starts",
)  # fmt: skip
USE_COLUMNS = (*CASE_COLUMNS, "time_s", "utilisation", "waiting_jobs")


def render(results: Sequence[CaseResult]) -> dict[str, str]:
    """The files by name. Unknown values are empty fields."""
    return {
        "summary.csv": csv_text(SUMMARY_COLUMNS, map(_summary, results)),
        "jobs.csv": csv_text(JOB_COLUMNS, (row for result in results for row in _jobs(result))),
        "use.csv": csv_text(USE_COLUMNS, (row for result in results for row in _use(result))),
    }


def _case(result: CaseResult) -> dict[str, Any]:
    return {name: getattr(result.case, name) for name in CASE_COLUMNS}


def _summary(result: CaseResult) -> dict[str, Any]:
    return {**_case(result), "offered_load": result.load, **asdict(result.figures)}


def _jobs(result: CaseResult) -> Iterator[dict[str, Any]]:
    for outcome in sorted(result.outcomes, key=lambda outcome: outcome.job.submit_s):
        job = outcome.job
        yield {
            **_case(result),
            "job_id": job.job_id,
            "model": job.model,
            "gpus": job.gpus,
            "submit_s": job.submit_s,
            "first_start_s": outcome.first_start_s,
            "end_s": outcome.end_s,
            "completion_s": outcome.completion_s,
            "queueing_s": outcome.waited_s,
            "ideal_s": job.ideal_s,
            "gpu_h": outcome.held_gpu_s / 3600,
            "comm_gpu_h": outcome.comm_gpu_s / 3600,
            "starts": outcome.starts,
        }


def _use(result: CaseResult) -> Iterator[dict[str, Any]]:
    for time_s, utilisation, waiting in result.use:
        yield {**_case(result), "time_s": time_s, "utilisation": utilisation, "waiting_jobs": waiting}
