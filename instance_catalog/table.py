"""CSV files of records: a header, then one record in each line. Empty cells: not known.

Columns are the fields of the record. Unknown columns are ignored, so that older versions read newer files. Files are
written as a whole or not at all.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, TypeVar

from ddlprof.base.files import replacing
from ddlprof.base.reading import ReadingError, read_text
from ddlprof.base.typed import plain_types
from ddlprof.instance_catalog.errors import CatalogError

Record = TypeVar("Record")

MAX_FILE_BYTES = 32 * 2**20
MAX_ROWS = 100_000
"""The most lines of a file. All GPU machines of the largest cloud have some ten thousand prices."""


def read(
    path: Path,
    record: type[Record],
    check: Callable[[Record], object] | None = None,
    advice: str = "correct the line or delete the file",
) -> list[Record]:
    """The records of a file. Raises CatalogError with file and line if something in it is wrong.

    `check` may raise CatalogError, too, to which the line is added. `advice`: the end of errors about a line.
    """
    try:
        text = read_text(path, MAX_FILE_BYTES)
    except ReadingError as error:
        raise CatalogError(f"{path}: {error}; correct or delete it") from None
    if text.count("\n") > MAX_ROWS:
        raise CatalogError(f"{path}: has more than {MAX_ROWS} lines; delete it, or those not needed")
    return parse(text, path, record, check, advice)


def parse(
    text: str, path: Path, record: type[Record], check: Callable[[Record], object] | None, advice: str
) -> list[Record]:
    """The records in the text of a file, as `read` returns them."""
    return list(_parse(io.StringIO(text, newline=""), path, record, check, advice))


def write(path: Path, records: Iterable[Any], record: type[Any]) -> None:
    """Writes a file through a temporary one, so that a reader or a crash leaves either the old file or the new one."""
    columns = _columns(record)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([_text(getattr(row, name)) for name in columns] for row in records)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CatalogError(f"{path}: cannot be written: {error.strerror or error}") from None


def _parse(
    lines: Iterable[str], path: Path, record: type[Record], check: Callable[[Record], object] | None, advice: str
) -> Iterator[Record]:
    columns = _columns(record)
    rows = csv.reader(lines, strict=True)
    try:
        header = next(rows, [])
        missing = [name for name, column in columns.items() if column.required and name not in header]
        if missing:
            raise ValueError(f"no column {missing[0]}")
        known = [(index, name, columns[name]) for index, name in enumerate(header) if name in columns]
        for cells in rows:
            if not cells:
                continue
            if len(cells) != len(header):
                raise ValueError(f"{len(cells)} cells under {len(header)} columns")
            row = record(**{name: column.value(cells[index]) for index, name, column in known if cells[index]})
            if check:
                check(row)
            yield row
    except TypeError:  # a required cell is empty
        what = "a cell that must be filled is empty"
    except (ValueError, csv.Error) as error:
        what = str(error)
    else:
        return
    raise CatalogError(f"{path}, line {max(rows.line_num, 1)}: {what}; {advice}")


class _Column:
    def __init__(self, record: Any, field: Field[Any]) -> None:
        self.required = field.default is MISSING
        self.value = _VALUES[plain_types(record)[field.name]]


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _whole(cell: str) -> int | str:
    try:
        return int(cell)
    except ValueError:
        return cell


def _truth(cell: str) -> bool | str:
    return {"true": True, "false": False}.get(cell, cell)


def _list(cell: str) -> tuple[str, ...]:
    return tuple(cell.split(";"))


_VALUES: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: _whole,
    float: _number,
    bool: _truth,
    tuple[str, ...]: _list,
}
"""Functions from a cell to a field's value. What they cannot convert stays text and is refused later."""


def _columns(record: type[Any]) -> dict[str, _Column]:
    derived: tuple[str, ...] = getattr(record, "DERIVED", ())
    return {field.name: _Column(record, field) for field in fields(record) if field.name not in derived}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ";".join(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
