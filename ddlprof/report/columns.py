"""Rows of cells as aligned lines of text."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ddlprof.model.plain import plain


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Two spaces between columns; columns whose numbers are in `right` end at one edge, as figures do."""
    rows = [list(map(plain, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(_padded(row, widths, right)).rstrip() for row in rows]


def _padded(row: Sequence[str], widths: Sequence[int], right: Container[int]) -> list[str]:
    return [
        cell.rjust(width) if number in right else cell.ljust(width)
        for number, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
