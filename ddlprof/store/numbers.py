"""Parses lines that contain only numbers, thousands at once; `ddlprof.store.lines` chooses the lines.

Each function raises one of `DAMAGE` unless all lines are valid.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ddlprof.store.tables import FloatArray

DAMAGE = (ValueError, OverflowError, RecursionError)
LARGEST = 2**62
"""The largest number accepted. No time of ddlprof is as large, and two such numbers can be added in 64 bits."""
_OF_WHOLE_NUMBERS = str.maketrans("", "", "0123456789,-[] ")
_OF_NUMBERS = str.maketrans("", "", "0123456789,-[] .eE+")
"""Translations that remove all characters of numbers from a text."""


def whole_numbers(lines: list[str]) -> list[list[int]]:
    """The numbers of each line; null, which nothing here may be, becomes -1."""
    return _rows(lines, "-1", _OF_WHOLE_NUMBERS)


def numbers(lines: list[str], width: int) -> FloatArray:
    """A row of `width` numbers for each line; null becomes NaN."""
    rows = _rows(lines, "NaN", _OF_NUMBERS)
    return np.array(rows, dtype=np.float64).reshape(len(rows), width)


def _rows(lines: list[str], null: str, usual: dict[int, int | None]) -> list[list[Any]]:
    # Other characters are counted in the whole text, which is faster than checking each value.
    text = ",".join(lines)
    count = len(lines)
    if text.count('"') != 2 * count or text.count("[") != count:
        raise ValueError("not one list of numbers a line")
    text = f"[{text.replace(lines[0][:5], '[') if lines else text}]"
    if text.replace("null", "").translate(usual):
        raise ValueError("not only numbers")
    rows: list[list[Any]] = json.loads(text.replace("null", null))
    if len(rows) != count:
        raise ValueError("not one list a line")
    return rows
