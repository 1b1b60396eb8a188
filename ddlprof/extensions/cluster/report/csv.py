"""Simulations as CSV files: `summary.csv` has a row for each, `jobs.csv` one for each job of each, `use.csv` one for
each piece of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

from ddlprof.base.files import replacing
from ddlprof.extensions.cluster.simulation.metrics import JOB_COLUMNS as ONE_JOB
from ddlprof.extensions.cluster.simulation.metrics import ClusterUse, PolicyMetrics
from ddlprof.extensions.cluster.sweep.cases import CaseResult
from ddlprof.report.json_csv import csv_text, csv_writer, write_rows

CASE_COLUMNS = ("policy", "seed", "load", "predictable")
"""The load is the one asked for: empty where submissions are as in the trace."""
SUMMARY_COLUMNS = (*CASE_COLUMNS, "offered_load", *(field.name for field in fields(PolicyMetrics)))
JOB_COLUMNS = (*CASE_COLUMNS, *ONE_JOB)
USE_COLUMNS = (*CASE_COLUMNS, *(field.name for field in fields(ClusterUse)))


def render(results: Sequence[CaseResult]) -> dict[str, str]:
    """The files with few rows, by name. Unknown values are empty fields."""
    return {
        "summary.csv": csv_text(SUMMARY_COLUMNS, _rows(results, _summary)),
        "use.csv": csv_text(USE_COLUMNS, _rows(results, lambda result: map(astuple, result.over_time))),
    }


@contextmanager
def job_file(path: Path) -> Iterator[Callable[[CaseResult], CaseResult]]:
    """Yields a function that writes the jobs of a result, and gives the result without them: of many simulations of
    many jobs they need not be in memory together. The file is there when all is well, whole. Raises OSError."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="", errors="replace") as file:
        writer = csv_writer(file, JOB_COLUMNS)

        def add(result: CaseResult) -> CaseResult:
            write_rows(writer, _rows([result], lambda each: map(astuple, each.jobs)))
            return replace(result, jobs=())

        yield add


def _rows(results: Iterable[CaseResult], of: Callable[[CaseResult], Iterable[Iterable[Any]]]) -> Iterator[list[Any]]:
    for result in results:
        case = [getattr(result.case, name) for name in CASE_COLUMNS]
        yield from ([*case, *row] for row in of(result))


def _summary(result: CaseResult) -> list[list[Any]]:
    return [[result.offered_load, *astuple(result.summary)]]
