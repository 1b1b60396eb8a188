"""Points of time and cost as a small plot of characters, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

_COLUMNS, _ROWS = 64, 12
_OTHER, _LIMIT = "·", "|"


def plot(
    points: Sequence[tuple[float, float, str]],
    limit: float,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
) -> list[str]:
    """Lines of text. A point is x, y (both above 0) and the character that marks it, empty for one among many.

    A vertical line stands at x = `limit` where it is in sight.
    """
    x_axis = _Axis([x for x, _, _ in points], _COLUMNS)
    y_axis = _Axis([y for _, y, _ in points], _ROWS)
    cells = [[" "] * _COLUMNS for _ in range(_ROWS)]
    if x_axis.low <= limit <= x_axis.high:
        for row in cells:
            row[x_axis.cell(limit)] = _LIMIT
    for x, y, mark in sorted(points, key=lambda point: bool(point[2])):  # marked ones on top
        cells[_ROWS - 1 - y_axis.cell(y)][x_axis.cell(x)] = mark or _OTHER
    labels = {0: y_text(y_axis.high), _ROWS - 1: y_text(y_axis.low)}
    width = max(map(len, labels.values()))
    lines = [f"{labels.get(number, ''):>{width}} {''.join(row)}".rstrip() for number, row in enumerate(cells)]
    low, high = x_text(x_axis.low), x_text(x_axis.high)
    return [*lines, f"{'':>{width}} {low}{high:>{_COLUMNS - len(low)}}"]


class _Axis:
    """Values on equal steps of their logarithm."""

    def __init__(self, values: Iterable[float], cells: int) -> None:
        known = list(values)
        self.low, self.high = min(known), max(known)
        self._cells = cells

    def cell(self, value: float) -> int:
        """0 for the lowest value, `cells` - 1 for the highest."""
        if self.high <= self.low:
            return 0
        return round(math.log(value / self.low) / math.log(self.high / self.low) * (self._cells - 1))
