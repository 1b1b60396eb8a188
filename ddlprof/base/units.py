"""Times, sizes and shares as people read them. Machine-readable formats do not use this module."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from ddlprof.base.errors import UserError

NOT_KNOWN = "-"
"""The entry in a table for a number that is not known."""


@dataclass(frozen=True)
class Scale:
    """One unit and number of decimals for all times of a card, so that they can be compared and added."""

    unit: str
    per_second: float
    decimals: int

    def number(self, seconds: float) -> str:
        """The time without its unit."""
        return f"{seconds * self.per_second:.{self.decimals}f}"

    def time(self, seconds: float) -> str:
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
    """`22 %`: a share in per cent; small shares keep one digit that is not 0."""
    value = 100 * share
    if value == 0 or abs(value) >= 0.95:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 0.095 else "<0.1 %"


def tenths_of_percent(share: float) -> str:
    """`22.4 %`, `-0.3 %`: a share in per cent with one decimal, however small."""
    return f"{100 * share:,.1f} %"


def signed_percent(share: float) -> str:
    """`+22.4 %`, `-0.3 %`, `0.0 %`: a change in per cent."""
    text = tenths_of_percent(abs(share))
    return text if text == "0.0 %" else f"{'+' if share > 0 else '-'}{text}"


def times(factor: float) -> str:
    """`1.42x`: how many times as much, or as fast."""
    return f"{factor:.2f}x"


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


def figure(value: float | None) -> str:
    """A number with three digits or more; `-` if it is not known."""
    return NOT_KNOWN if value is None else significant(value)


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


def size(number_of_bytes: float) -> str:
    """`512 B`, `1.5 MiB`: three digits and a binary prefix."""
    for unit in ("B", "KiB", "MiB"):
        if number_of_bytes < 1024:
            return f"{significant(number_of_bytes)} {unit}"
        number_of_bytes /= 1024
    return f"{significant(number_of_bytes)} GiB"


def gib(number_of_bytes: float) -> str:
    """`1.5 GiB`, or MiB below one."""
    value = number_of_bytes / 2**30
    return f"{value:.1f} GiB" if value >= 1 else f"{value * 1024:.0f} MiB"


def usd(dollars: float) -> str:
    """`0.0123 USD`, `12.30 USD`: cents, or three digits below one dollar."""
    return f"{dollars:,.2f} USD" if dollars >= 1 else f"{significant(dollars)} USD"


def seconds_of(nanoseconds: float | None) -> float | None:
    """Nanoseconds as seconds; None stays None."""
    return None if nanoseconds is None else nanoseconds / 1e9


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


def short_time(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 5 min`: like `long_time`, but rounded more."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.0f} min" if seconds < 3600 else long_time(seconds)


def time_in_one_unit(seconds: float) -> str:
    """`95.3 s`, `12.3 min`, `1234.5 h`: a time of any length with a decimal."""
    if seconds < 120:
        return f"{significant(seconds)} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def duration(seconds: float) -> str:
    """`45 s`, `90 min`, `12 h`, `5.5 d`: a time of any length with three digits."""
    for limit, unit_s, name in ((120, 1, "s"), (7200, 60, "min"), (4 * 86400, 3600, "h")):
        if seconds < limit:
            return f"{significant(seconds / unit_s)} {name}"
    return f"{significant(seconds / 86400)} d"


def listed(items: list[str], most: int = 4) -> str:
    """`a, b, c and 5 more`: at most `most` items, then how many are left out."""
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
"""September 2001. Earlier times are not real dates: some traces count from 0, shared runs from 2000."""


def moment(unix_ns: int) -> str | None:
    """`2026-11-22T13:45:00Z`; None if the moment is not known or not in the calendar."""
    try:
        found = datetime.fromtimestamp(unix_ns // 10**9, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None
    return found.strftime("%Y-%m-%dT%H:%M:%SZ") if unix_ns else None


def date_and_time(unix_ns: int) -> str | None:
    """`2026-11-22 13:45 UTC`; None if no run can have begun at that moment."""
    found = moment(unix_ns) if unix_ns >= _EARLIEST_UNIX_NS else None
    return f"{found[:16].replace('T', ' ')} UTC" if found else None


_UNIT_S = {"w": 7 * 86400.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_UNITS = "weeks?|w|days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s"
_PART = re.compile(rf"(\d+(?:\.\d*)?|\.\d+)({_UNITS})")


def parse_duration(text: str, option: str) -> float:
    """The seconds, above 0, of a text such as `90m` or `2h30m`. Raises UserError that names the option."""
    compact = re.sub(r"\s", "", text.lower())
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise UserError(f"{option} takes a time as in 12h, 90m, 1d or 2h30m: not {text!r}")
    seconds = sum(float(number) * _UNIT_S[unit[0]] for number, unit in parts)
    if seconds <= 0:
        raise UserError(f"{option} must be more than zero: not {text!r}")
    return seconds
