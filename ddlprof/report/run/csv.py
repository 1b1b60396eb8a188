"""The CSV files of a run. An empty field was not measured; seconds are written at full precision."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.run import Attempt, headline_attempt
from ddlprof.model.errors import UserError
from ddlprof.model.records import COLLECTIVE_COLUMNS, MISSING, STEP_COLUMNS, SUMMARY_COLUMNS
from ddlprof.report.csv_cells import cell
from ddlprof.report.run.tables import (
    JOB_COLUMNS,
    RANK_COLUMNS,
    Columns,
    collective_columns,
    job_columns,
    rank_columns,
    step_columns,
    summary_columns,
)
from ddlprof.store import RunData

Progress = Callable[[int, int], None]
"""`progress(ranks written, ranks in all)`."""


def export(run: RunData, attempts: Sequence[Attempt], directory: Path, progress: Progress | None = None) -> list[Path]:
    """Writes the files into `directory`, which is made if need be; only files of the same names are replaced."""
    headline = headline_attempt(attempts)
    ranks = [rank for attempt in attempts for rank in attempt.ranks]
    origin = run.origin_unix_ns

    def steps() -> Iterable[Columns]:
        for number, rank in enumerate(ranks, 1):
            yield step_columns(rank, origin)
            if progress:
                progress(number, len(ranks))

    files = {
        "summary.csv": (SUMMARY_COLUMNS, [summary_columns(headline.summary if headline else None)]),
        "ranks.csv": (RANK_COLUMNS, [rank_columns(attempts)]),
        "job.csv": (JOB_COLUMNS, [job_columns(attempts)]),
        "collectives.csv": (COLLECTIVE_COLUMNS, (collective_columns(rank, origin) for rank in ranks)),
        "steps.csv": (STEP_COLUMNS, steps()),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, (header, tables) in files.items():
            _write(directory / name, header, tables)
    except OSError as error:
        where = error.filename or directory
        raise UserError(f"{where}: cannot be written: {error.strerror or error}; choose another --out") from None
    return [directory / name for name in files]


def _write(path: Path, header: Sequence[str], tables: Iterable[Columns]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for columns in tables:
            writer.writerows(zip(*(_fields(column) for column in columns.values()), strict=True))


def _fields(column: NDArray[Any]) -> list[Any]:
    """Values that the writer turns into the right text: None into nothing, floats at full precision."""
    values: list[Any] = column.tolist()
    if column.dtype.kind not in "fiu":
        shown = {value: cell(value) for value in set(values)}  # few, in many rows
        return [shown[value] for value in values]
    if column.dtype.kind in "fi":
        for index in np.flatnonzero(np.isnan(column) if column.dtype.kind == "f" else column == MISSING).tolist():
            values[index] = None
    return values
