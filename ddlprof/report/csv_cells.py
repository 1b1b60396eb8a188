"""Values as the cells of a CSV file, which programs read and people open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddlprof.base.text import plain

_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""A spreadsheet computes a text that begins so (the last four: wide forms), and may be told to send the sheet away."""


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
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _harmless(text: str) -> str:
    """The text on one line, with an apostrophe before what would be a formula, so that spreadsheets take it as text."""
    shown = plain(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown
