"""Points of time and cost as a plot of characters, fitted to them: an axis is logarithmic where they span a decade."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddlprof.base.units import significant

_COLUMNS, _ROWS = 78, 16
_INSIDE = (66, 13)
"""About so many of these columns and rows are inside the frame."""
_OTHER = "·"
_DECADE = 10.0
_ROOM = 0.04
_MOST_TICKS = (7, 5)
_NEAR_BEFORE, _NEAR_FACTOR, _NEAR_SHARE = 1.5, 3.0, 0.6
"""A limit is in sight if it is not far before the first point, and beyond the last one by no more than this factor or,
on an axis that is not logarithmic, this share of what the points span. The page's script says the same."""


@dataclass(frozen=True)
class Axis:
    """The ends of an axis, and the round values that label it."""

    low: float
    high: float
    is_log: bool
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """The position of a value on the axis, from 0 to 1."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def fitted(values: Sequence[float], most_ticks: int) -> Axis:
    """The axis of values above 0, with a little room at both ends."""
    low, high = min(values), max(values)
    if is_log := high > _DECADE * low:
        room = (high / low) ** _ROOM
        low, high = low / room, high * room
    else:
        margin = _ROOM * (high - low) or 0.1 * high
        low, high = max(low - margin, 0.0), high + margin
    return Axis(low, high, is_log, _decades(low, high, most_ticks) if is_log else _steps(low, high, most_ticks))


def axes(points: Sequence[tuple[float, float]], limit: float) -> tuple[Axis, Axis, bool]:
    """The axes of x and y, and whether the limit of x is near enough to the points to be in sight."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    alone = fitted(xs, _MOST_TICKS[0])
    most = _NEAR_FACTOR * max(xs) if alone.is_log else max(xs) + _NEAR_SHARE * (max(xs) - min(xs))
    is_near = min(xs) / _NEAR_BEFORE <= limit <= most
    return fitted([*xs, limit], _MOST_TICKS[0]) if is_near else alone, fitted(ys, _MOST_TICKS[1]), is_near


def apart(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> list[int]:
    """The indices of points whose marks do not cover each other, always with the first and the last."""
    cells = [
        tuple(round(axis.share(v) * size) for axis, v, size in zip((x, y), p, _INSIDE, strict=True)) for p in points
    ]
    taken: dict[tuple[int, ...], int] = {}
    for number in (0, len(points) - 1, *range(1, len(points) - 1)) if points else ():
        taken.setdefault(cells[number], number)
    return sorted(taken.values())


def plot(points: Sequence[tuple[float, float, str]], x: Axis, y: Axis, limit: float | None) -> list[str]:
    """Lines of text. A point is x, y (both above 0) and the character that marks it, empty for one among many.

    A vertical line stands at x = `limit`.
    """
    names = [(y.share(value), significant(value)) for value in y.ticks]
    left = max((len(name) for _, name in names), default=0)
    columns, rows = _COLUMNS - left - 2, _ROWS - 3
    inside = [[" "] * columns for _ in range(rows)]
    line = None if limit is None else _cell(x.share(limit), columns)
    if line is not None:
        for row in inside:
            row[line] = "│"
    for at_x, at_y, mark in sorted(points, key=lambda point: point[2]):  # marked ones on top
        inside[_cell(y.share(at_y), rows)][_cell(x.share(at_x), columns)] = mark or _OTHER
    under = [" "] * _COLUMNS
    named = [
        cell
        for cell, value in ((_cell(x.share(value), columns), value) for value in x.ticks)
        if _put(under, left + 1 + cell, significant(value))
    ]
    beside = {_cell(share, rows): name for share, name in names}
    frame = [
        " " * left + "┌" + _edge(columns, {line: "┬"}) + "┐",
        *(
            beside.get(row, "").rjust(left) + ("┤" if row in beside else "│") + "".join(inside[row]) + "│"
            for row in reversed(range(rows))
        ),
        " " * left + "└" + _edge(columns, {**dict.fromkeys(named, "┬"), line: "┴"}) + "┘",
    ]
    return [text.rstrip() for text in (*frame, "".join(under))]


def _cell(share: float, cells: int) -> int:
    """The cell, from 0, in which a share of an axis lies; rounding keeps float errors from deciding."""
    return math.floor(round(0.5 + (cells - 1) * share, 8))


def _edge(columns: int, marks: Mapping[int | None, str]) -> str:
    """A side of the frame, with some cells marked."""
    return "".join(marks.get(column, "─") for column in range(columns))


def _put(line: list[str], at: int, text: str) -> bool:
    """Writes the label of a tick below it, moved into free cells. Returns False where labels would touch."""
    size = len(text)
    free = [cell for cell in range(max(at - size + 1, 0), min(at + size, len(line) - 1)) if line[cell] == " "]
    begin = (free[0] + free[-1] + 1 - size) // 2 if free else -1
    if begin < 0 or begin + size > len(line) or any(cell != " " for cell in line[max(begin - 1, 0) : begin + size + 1]):
        return False
    line[begin : begin + size] = text
    return True


def _steps(low: float, high: float, most: int) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 of some power of ten."""
    wide = (high - low) / most
    power = 10.0 ** math.floor(math.log10(wide))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= wide)
    first = math.ceil(low / step)
    return tuple(_round(number * step) for number in range(first, math.floor(high / step) + 1))


def _decades(low: float, high: float, most: int) -> tuple[float, ...]:
    """The ticks 1, 2 and 5 of each decade, or fewer where those would be more than `most`."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    found: list[float] = []
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = (_round(digit * 10.0**power) for power in powers for digit in digits)
        found = [tick for tick in ticks if low <= tick <= high]
        if len(found) <= most:
            break
    return tuple(found[:: -(-len(found) // most)])


def _round(value: float) -> float:
    return float(f"{value:.12g}")
