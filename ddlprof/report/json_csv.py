"""JSON and CSV for programs: the one way in which every report is written for them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ddlprof.base.text import plain

if TYPE_CHECKING:
    from _csv import Writer as CsvWriter

_MAY_BE_INVISIBLE = re.compile(r"[^\x00-\x7e]")
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""A spreadsheet computes a text that begins so (the last four: wide forms), and may be told to send the sheet away."""


def json_text(value: Any) -> str:
    """JSON for programs, readable for people, ending with a line end; NaN and infinity are refused.

    Names are as they are, but what cannot be seen is written as JSON's own escapes, also lone surrogates, which no
    file in UTF-8 can hold.
    """
    file = io.StringIO()  # json.dumps would first make a list of all the pieces, ten times as large
    json.dump(value, file, indent=1, ensure_ascii=False, allow_nan=False)
    return _MAY_BE_INVISIBLE.sub(lambda found: _json_character(found[0]), file.getvalue()) + "\n"


def _json_character(character: str) -> str:
    return character if plain(character) == character else json.dumps(character)[1:-1]


def cell(value: Any) -> Any:
    """A cell for `csv.writer`: numbers and None (an empty field) as they are, texts so that nothing computes them.

    Booleans become `true` and `false`, several values one text with commas.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return cell(",".join(map(str, value)))
    return _harmless(value) if isinstance(value, str) else value


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A CSV file with one header row; the values of each row stand in the order of `columns`."""
    text = io.StringIO()
    write_rows(csv_writer(text, columns), rows)
    return text.getvalue()


def csv_writer(file: TextIO, columns: Iterable[str]) -> CsvWriter:
    """Begins a CSV file with its header; lines end as on Unix wherever they are written."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    return writer


def write_rows(writer: CsvWriter, rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds rows to a CSV file; their values stand in the order of its columns."""
    writer.writerows([cell(value) for value in row.values()] for row in rows)


def _harmless(text: str) -> str:
    """The text on one line, with an apostrophe before what would be a formula, so that spreadsheets take it as text."""
    shown = plain(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown
