"""Times, sizes and shares as people read them. Machine-readable formats do not use this module."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from ddlprof.base.errors import UserError


@dataclass(frozen=True)
class Scale:
    """One unit and number of decimals for all the times of a card, so that they can be compared and added."""

    unit: str
    per_second: float
    decimals: int

    def number(self, seconds: float) -> str:
        """The time without its unit."""
        return f"{seconds * self.per_second:.{self.decimals}f}"

    def time(self, seconds: float) -> str:
        """The time with its unit."""
        return f"{self.number(seconds)} {self.unit}"


def scale_for(step_s: float) -> Scale:
    """The scale that shows a step of this length with about three digits."""
    for smallest, scale in (
        (10.0, Scale("s", 1, 1)),
        (0.1, Scale("ms", 1e3, 0)),
        (0.01, Scale("ms", 1e3, 1)),
        (0.001, Scale("ms", 1e3, 2)),
        (0.0001, Scale("µs", 1e6, 0)),
    ):
        if step_s >= smallest:
            return scale
    return Scale("µs", 1e6, 1)


def percent(share: float) -> str:
    """`22 %`: a share in per cent; small shares keep a digit that is not 0."""
    value = 100 * share
    if value == 0 or abs(value) >= 0.95:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 0.095 else "<0.1 %"


def count(number: int, singular: str, plural: str | None = None) -> str:
    """`1 step`, `2 steps`: a number with its noun."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def significant(value: float, digits: int = 3) -> str:
    """Three digits or more and never an exponent: `0.123`, `12.3`, `1,230`; with four `1,230` and `999.5`."""
    if not value or not math.isfinite(value):
        return f"{value:.0f}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def scaled(value: float, unit: str = "") -> str:
    """`24.5 G`, `1.2 MFLOP`: three digits and a decimal prefix."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{significant(value / size)} {prefix}{unit}"
    return f"{significant(value)} {unit}".rstrip()


def either(*choices: str | None) -> str:
    """`a, b, or c`, without those that are None."""
    *first, last = [choice for choice in choices if choice]
    return ", ".join([*first, f"or {last}" if first else last])


def gib(number_of_bytes: float) -> str:
    """`1.5 GiB`, or MiB below one."""
    value = number_of_bytes / 2**30
    return f"{value:.1f} GiB" if value >= 1 else f"{value * 1024:.0f} MiB"


def ago(seconds: float) -> str:
    """`4 minutes ago`: a time in one unit."""
    for length, name in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= length:
            return f"{count(int(seconds / length), name)} ago"
    return f"{count(max(int(seconds), 0), 'second')} ago"


def long_time(seconds: float) -> str:
    """`4.2 s`, `3 min 20 s`, `5 h 12 min`: a time of any length in at most two units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600:,} h {int(seconds) % 3600 // 60} min"


def listed(items: list[str], most: int = 4) -> str:
    """`a, b, c and 5 more`."""
    if len(items) <= most:
        return ", ".join(items)
    return f"{', '.join(items[:most])} and {len(items) - most} more"


def ranges(numbers: Iterable[int], most: int = 8) -> str:
    """`0-7, 9, 12-15`: three and more in a row as a range."""
    rows: list[list[int]] = []
    for number in sorted(set(numbers)):
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    items = [[f"{row[0]}-{row[-1]}"] if len(row) > 2 else list(map(str, row)) for row in rows]
    return listed([item for row in items for item in row], most)


_EARLIEST_UNIX_NS = 10**18
"""September 2001. What is before it is no date of a run: a trace without one counts from 0, a shared run from 2000."""


def moment(unix_ns: int) -> str | None:
    """2026-11-22T13:45:00Z; None where the moment is not known, or none that a calendar has."""
    try:
        found = datetime.fromtimestamp(unix_ns // 10**9, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None
    return found.strftime("%Y-%m-%dT%H:%M:%SZ") if unix_ns else None


def date_and_time(unix_ns: int) -> str | None:
    """`2026-11-22 13:45 UTC`; None where the moment is not one that a run can have begun at."""
    found = moment(unix_ns) if unix_ns >= _EARLIEST_UNIX_NS else None
    return f"{found[:16].replace('T', ' ')} UTC" if found else None


_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(d|h|min|m|s)")


def parse_duration(text: str, option: str) -> float:
    """Seconds, above 0. Raises UserError naming the option."""
    compact = re.sub(r"\s", "", text.lower())
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise UserError(f"{option} takes a time as in 12h, 90m, 1d or 2h30m: not {text!r}")
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
    if seconds <= 0:
        raise UserError(f"{option} must be more than zero: not {text!r}")
    return seconds
