"""Reads the files of histories: tables with named columns, and JSON. Every failure is one line with file and line."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ddlprof.base.errors import UserError, naming
from ddlprof.base.reading import ReadingError, parse_json, read_text, text_of

MAX_FILE_BYTES = 1 << 30
"""The largest file that is read."""
MOST_VALUES = 20_000_000
"""The most values of a JSON file: those of some 60,000 pods, in 2 GB of memory."""
MOST_ROWS = 4_000_000
"""The most jobs of a table; the largest published one has 3.3 million, in 2 GB of memory."""
STDIN = Path("-")


class Wrong(ReadingError):
    """What is wrong with one row or one job; whoever knows file and line adds them."""


def text_in(path: Path) -> str:
    """The text of a file, or of standard input for `-`. Raises UserError that names the file."""
    with naming(path):
        if path != STDIN:
            return read_text(path, MAX_FILE_BYTES)
        content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ReadingError(f"has more than {MAX_FILE_BYTES >> 20} MiB")
        return text_of(content)


def json_in(path: Path) -> Any:
    """The value of a JSON file. Raises UserError that names the file, and the line of what is no JSON."""
    with naming(path):
        return parse_json(text_in(path), MOST_VALUES)


def lines(text: str) -> Iterator[str]:
    """The lines of a text, one after the other: those of a large file would not fit into memory beside it."""
    return iter(io.StringIO(text, newline=None))


def require_few(row: int) -> None:
    """Raises Wrong at the first row that is too many."""
    if row > MOST_ROWS:
        raise Wrong(f"more than {MOST_ROWS:,} jobs are not read: name a file with a part of them")


def rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV text as (line, cells by column). Raises UserError with file and line."""
    reader = csv.reader(lines(text), strict=True)
    columns: list[str] = []
    row = 0
    try:
        for cells in reader:
            if not cells:
                continue
            if not columns:
                columns = [cell.strip() for cell in cells]
                continue
            row += 1
            require_few(row)
            if len(cells) != len(columns):
                raise Wrong(f"{len(cells)} cells under {len(columns)} columns")
            yield reader.line_num, {name: cell.strip() for name, cell in zip(columns, cells, strict=True)}
    except (Wrong, csv.Error) as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None


def cell_number(row: Mapping[str, str], name: str) -> float:
    """The number in a cell, 0 for an empty one. Raises Wrong for what is no number, or below 0."""
    text = row.get(name, "")
    try:
        value = float(text or 0)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e15:
        raise Wrong(f"{name}: {text[:60]!r} is no number from 0 up")
    return value
