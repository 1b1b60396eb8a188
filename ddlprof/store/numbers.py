"""Parses lines that hold numbers only, thousands at once, into columns; `ddlprof.store.rankfile` says which.

Each function raises one of `DAMAGE` unless every line is what it should be.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import numpy as np

from ddlprof.model.records import MISSING
from ddlprof.store.tables import FloatArray, IntArray

DAMAGE = (ValueError, OverflowError, RecursionError)
LARGEST = 2**62
"""The largest number: no time of ours is as large, and two of them can be added as 64-bit integers."""
_NULL = -LARGEST
_OF_WHOLE_NUMBERS = str.maketrans("", "", "0123456789,-[] ")
_OF_NUMBERS = str.maketrans("", "", "0123456789,-[] .eE+")
"""What takes all that numbers are written with out of a text."""


def whole_numbers(
    lines: list[str], names: tuple[str, ...], optional: frozenset[str], more: bool
) -> tuple[IntArray, IntArray]:
    """A row for each line, with the columns `names`, where null, if allowed, is MISSING.

    What comes after these columns, if there may be `more`, is in the second array, one after the other. Two
    columns at the end of the first say where in it a row's begins and ends.
    """
    rows = _rows(lines, str(_NULL), _OF_WHOLE_NUMBERS)
    width = len(names)
    sizes = np.array(list(map(len, rows)), dtype=np.int64)
    if (sizes < width).any() or ((sizes > width).any() and not more):
        raise ValueError("not one whole record a line")
    values = np.array(list(chain.from_iterable(rows)), dtype=np.int64)
    lengths = sizes - width
    ends = np.cumsum(lengths)
    in_table = np.arange(len(values)) - np.repeat(np.cumsum(sizes) - sizes, sizes) < width
    table = values[in_table].reshape(len(rows), width)
    null = table == _NULL
    known = np.array([name not in optional for name in names], dtype=bool)
    if null[:, known].any() or (table[:, ~known] < 0)[~null[:, ~known]].any():
        raise ValueError("null for what is always known, or a negative number")
    table[null] = MISSING
    return np.column_stack([table, ends - lengths, ends]), values[~in_table]


def numbers(lines: list[str], width: int) -> FloatArray:
    """A row for each line; null is NaN."""
    rows = _rows(lines, "NaN", _OF_NUMBERS)
    return np.array(rows, dtype=np.float64).reshape(len(rows), width)


def _rows(lines: list[str], null: str, usual: dict[int, int | None]) -> list[list[Any]]:
    # Everything but numbers is counted in the text, which is faster than looking at each of the values.
    text = ",".join(lines)
    count = len(lines)
    if text.count('"') != 2 * count or text.count("[") != count:
        raise ValueError("not one list of numbers a line")
    text = "[" + _without_tags(text, lines) + "]"
    if text.replace("null", "").translate(usual):
        raise ValueError("not only numbers")
    rows: list[list[Any]] = json.loads(text.replace("null", null))
    if len(rows) != count:
        raise ValueError("not one list a line")
    return rows


def _without_tags(text: str, lines: list[str]) -> str:
    return text.replace(lines[0][:5], "[") if lines else text
