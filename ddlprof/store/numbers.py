"""Parses lines that contain only numbers, thousands at once, into columns; `ddlprof.store.rankfile` chooses the lines.

Each function raises one of `DAMAGE` unless all lines are valid.
"""

from __future__ import annotations

import json
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.records import MISSING
from ddlprof.store.tables import FloatArray, IntArray

DAMAGE = (ValueError, OverflowError, RecursionError)
LARGEST = 2**62
"""The largest number accepted. No time of ddlprof is as large, and two such numbers can be added in 64 bits."""
_NULL = -LARGEST
_OF_WHOLE_NUMBERS = str.maketrans("", "", "0123456789,-[] ")
_OF_NUMBERS = str.maketrans("", "", "0123456789,-[] .eE+")
"""Translations that remove all characters of numbers from a text."""
_NULL_IS_0 = bytes.maketrans(b"n", b"0")
_DIGITS = 10
_MOST_DIGITS = 18
_PIECE = 1 << 16


def whole_numbers(
    lines: list[str], names: tuple[str, ...], optional: frozenset[str], more: bool
) -> tuple[IntArray, IntArray]:
    """A row for each line with the columns `names`. Null, if allowed (`optional`), is MISSING.

    If a line may have `more` values, these are in the second array, line after line. Two more columns of the first
    array then say where a row's values begin and end.
    """
    rows = _rows(lines, str(_NULL), _OF_WHOLE_NUMBERS)
    sizes = np.array(list(map(len, rows)), dtype=np.int64)
    return _table(np.array(list(chain.from_iterable(rows)), dtype=np.int64), sizes, names, optional, more)


def whole_numbers_at_once(
    text: bytes, prefix: bytes, names: tuple[str, ...], optional: frozenset[str], more: bool
) -> tuple[IntArray, IntArray]:
    """Like `whole_numbers` for the lines of a text, but several times as fast. Each line begins with `prefix`.

    Accepts only the form that `ddlprof` writes: no spaces, no negative numbers, at most 18 digits.
    """
    parts = [_plain(text[begin:end], prefix) for begin, end in pairwise(_ends_of_pieces(text))]
    nothing = np.zeros(0, dtype=np.int64)
    values = np.concatenate([nothing, *(values for values, _ in parts)])
    sizes = np.concatenate([nothing, *(sizes for _, sizes in parts)])
    return _table(values, sizes, names, optional, more)


def _ends_of_pieces(text: bytes) -> list[int]:
    """Where the text begins, and where pieces of whole lines end that fit into a processor's cache."""
    ends = [0]
    while ends[-1] < len(text):
        ends.append((text.find(b"\n", ends[-1] + _PIECE) + 1) or len(text))
    return ends


def _plain(text: bytes, prefix: bytes) -> tuple[IntArray, IntArray]:
    """The numbers of all lines in a row, null as _NULL, and the count of numbers in each line."""
    letters = np.frombuffer(text, dtype=np.uint8)
    is_close = letters == ord("]")
    ends = np.flatnonzero((letters == ord(",")) | is_close)  # of words
    is_last = is_close[ends]
    line_ends = np.flatnonzero(letters == ord("\n"))
    line_begins = np.concatenate([[0], line_ends[:-1] + 1])
    if not np.array_equal(ends[is_last] + 1, line_ends) or (line_ends - line_begins <= len(prefix)).any():
        raise ValueError("not one list a line")
    _require(letters, line_begins, prefix)
    is_number = ~np.concatenate([[True], is_last[:-1]])  # the first word of a line is its tag
    first, ends = np.concatenate([[0], ends[:-1] + 1])[is_number], ends[is_number]
    lengths, begin_with = ends - first, letters[first]
    is_null = begin_with == ord("n")
    _require(letters, first[is_null], b"null")
    if (
        (lengths < 1).any()
        or (lengths > _MOST_DIGITS).any()
        or ((begin_with == ord("0")) & (lengths > 1)).any()
        or (lengths[is_null] != len(b"null")).any()
        or np.count_nonzero(letters - np.uint8(ord("0")) < _DIGITS) != lengths[~is_null].sum()
    ):
        raise ValueError("a number that is not written as ours are")
    # Without the tags and the ends of lines, what is left is ",1,2" and the next line's ",3,4".
    listed = text.translate(_NULL_IS_0, prefix[:-1] + b"ul]\n")[1:]
    values = np.fromstring(listed, dtype=np.int64, sep=",")
    values[is_null] = _NULL
    return values, np.diff(np.flatnonzero(is_last), prepend=-1) - 1


def _require(letters: NDArray[np.uint8], places: IntArray, word: bytes) -> None:
    """Raises ValueError unless `word` is at each of the places."""
    if any((letters[places + place] != letter).any() for place, letter in enumerate(word)):
        raise ValueError("not only numbers")


def _table(
    values: IntArray, sizes: IntArray, names: tuple[str, ...], optional: frozenset[str], more: bool
) -> tuple[IntArray, IntArray]:
    width = len(names)
    if (sizes < width).any() or ((sizes > width).any() and not more):
        raise ValueError("not one whole record a line")
    lengths = sizes - width
    ends = np.cumsum(lengths)
    in_table = np.arange(len(values)) - np.repeat(np.cumsum(sizes) - sizes, sizes) < width
    table = values[in_table].reshape(len(sizes), width)
    null = table == _NULL
    known = np.array([name not in optional for name in names], dtype=bool)
    if null[:, known].any() or (table[:, ~known] < 0)[~null[:, ~known]].any():
        raise ValueError("null for what is always known, or a negative number")
    table[null] = MISSING
    return np.column_stack([table, ends - lengths, ends]), values[~in_table]


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
