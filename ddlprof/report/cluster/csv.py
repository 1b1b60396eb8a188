"""Simulations as CSV files: `summary.csv` has a row for each, `jobs.csv` one for each job of each, `use.csv` one for
each piece of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from ddlprof.cluster.simulation.metrics import JOB_COLUMNS as ONE_JOB
from ddlprof.cluster.simulation.metrics import Load, Summary
from ddlprof.cluster.sweep.result import CaseResult
from ddlprof.report.csv_cells import csv_text

CASE_COLUMNS = ("policy", "seed", "load", "predictable")
"""The load is the one asked for: empty where submissions are as in the trace."""
SUMMARY_COLUMNS = (*CASE_COLUMNS, "offered_load", *(field.name for field in fields(Summary)))
JOB_COLUMNS = (*CASE_COLUMNS, *ONE_JOB)
USE_COLUMNS = (*CASE_COLUMNS, *(field.name for field in fields(Load)))


def render(results: Sequence[CaseResult]) -> dict[str, str]:
    """The files by name. Unknown values are empty fields."""
    return {
        "summary.csv": csv_text(SUMMARY_COLUMNS, _rows(results, lambda result: [_summary(result)])),
        "jobs.csv": csv_text(JOB_COLUMNS, _rows(results, lambda result: map(asdict, result.jobs))),
        "use.csv": csv_text(USE_COLUMNS, _rows(results, lambda result: map(asdict, result.over_time))),
    }


def _rows(
    results: Sequence[CaseResult], of: Callable[[CaseResult], Iterable[dict[str, Any]]]
) -> Iterable[dict[str, Any]]:
    for result in results:
        case = {name: getattr(result.case, name) for name in CASE_COLUMNS}
        yield from ({**case, **row} for row in of(result))


def _summary(result: CaseResult) -> dict[str, Any]:
    return {"offered_load": result.offered_load, **asdict(result.summary)}
