"""Points of time and cost as a plot of characters, fitted to them: an axis is logarithmic where they span a decade."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddlprof.report.units import significant

_COLUMNS, _ROWS = 78, 16
_INSIDE = (66, 13)
"""Of these, about so many are inside the frame."""
_OTHER = "·"
_DECADE = 10.0
_ROOM = 0.04
_MOST_TICKS = (7, 5)
_NEAR_BEFORE, _NEAR_FACTOR, _NEAR_SHARE = 1.5, 3.0, 0.6
"""A limit is in sight if it is not far before the first point, and beyond the last one by no more than this factor or,
on an axis that is not logarithmic, this share of what the points span. The page's script says the same."""


@dataclass(frozen=True)
class Axis:
    """What an axis reaches from and to, and the round values that it names."""

    low: float
    high: float
    is_log: bool
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
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
    """The numbers of those points, the first and the last among them, whose marks do not cover each other."""
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
    import plotext

    plotext.clear_figure()  # the package draws one figure at a time
    plotext.theme("clear")
    plotext.limit_size(False, False)  # not to the terminal: the text may go to a file
    plotext.plot_size(_COLUMNS, _ROWS)
    if limit is not None:
        plotext.vertical_line(x.share(limit))
    for mark in sorted({mark for _, _, mark in points}):  # marked ones on top
        marked = [(x.share(at_x), y.share(at_y)) for at_x, at_y, own in points if own == mark]
        plotext.scatter([at for at, _ in marked], [at for _, at in marked], marker=mark or _OTHER)
    # Shares of the axes, as the package's logarithms take no limits.
    for axis, limits, ticks in ((x, plotext.xlim, plotext.xticks), (y, plotext.ylim, plotext.yticks)):
        limits(0, 1)
        ticks([axis.share(value) for value in axis.ticks], [significant(value) for value in axis.ticks])
    drawn: str = plotext.uncolorize(plotext.build())
    plotext.clear_figure()
    return [line.rstrip() for line in drawn.splitlines()]


def _steps(low: float, high: float, most: int) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 of some power of ten."""
    wide = (high - low) / most
    power = 10.0 ** math.floor(math.log10(wide))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= wide)
    first = math.ceil(low / step)
    return tuple(_round(number * step) for number in range(first, math.floor(high / step) + 1))


def _decades(low: float, high: float, most: int) -> tuple[float, ...]:
    """1, 2 and 5 of each decade, or less where that were too many."""
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
