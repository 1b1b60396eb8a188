"""The CSV files of a run. An empty field was not measured; seconds are written at full precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.run import Attempt
from ddlprof.base.errors import refusing
from ddlprof.base.files import replacing_all
from ddlprof.model.records import MISSING
from ddlprof.report.json_csv import cell, csv_writer
from ddlprof.report.run.tables import Columns, Progress, tables_of
from ddlprof.store import RunData


def export(run: RunData, attempts: Sequence[Attempt], directory: Path, progress: Progress | None = None) -> list[Path]:
    """Writes the files into `directory`, which is made if need be; only files of the same names are replaced, and only
    when all are written."""
    tables = list(tables_of(run, attempts, progress))
    paths = [directory / f"{table.name}.csv" for table in tables]
    with refusing(f"{directory}: cannot be written", "; choose another --out"):
        directory.mkdir(parents=True, exist_ok=True)
        with replacing_all(paths) as temporary:
            for path, table in zip(temporary, tables, strict=True):
                _write(path, table.columns, table.pieces)
    return paths


def _write(path: Path, header: Iterable[str], tables: Iterable[Columns]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv_writer(file, header)
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
