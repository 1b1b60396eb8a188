"""Dates and durations as schedulers write them."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from ddlprof.base.errors import UserError
from ddlprof.base.units import parse_duration
from ddlprof.extensions.cluster.history.files import Wrong

_NEVER = frozenset({"", "none", "null", "unknown", "n/a", "na", "nan", "-", "invalid", "not_set"})
_NUMBER = re.compile(r"\d+(\.\d*)?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d*)?)|(\d+)-(\d+)", re.ASCII)
_FRACTION = re.compile(r"(?<=:\d\d)\.(\d+)", re.ASCII)
_LATEST_S = 4e9
_LONGEST_S = 1e15
"""As for other numbers of a table; whoever uses them leaves out what cannot be, with a word."""


def moment(text: str, what: str) -> float | None:
    """Seconds since 1970 of a date such as `2026-11-26T09:40:46`, with or without `Z` or `+02:00`; numbers are seconds.

    Dates without a zone are taken for UTC. None: `Unknown`, `None` or empty. Raises Wrong for anything else.
    """
    text = text.strip()
    if text.lower() in _NEVER:
        return None
    found_s = float(text) if _NUMBER.fullmatch(text) else _date(text, what)
    if not 0 <= found_s <= _LATEST_S:
        raise Wrong(f"{what}: {text[:60]!r} is before 1970 or after 2096")
    return found_s


def _date(text: str, what: str) -> float:
    plain = re.sub(r"\s+(UTC|GMT)$|Z$", "+00:00", text)
    plain = _FRACTION.sub(lambda part: f".{part[1][:6]:0<6}", plain)  # Python 3.10 reads 3 or 6 digits
    try:
        date = datetime.fromisoformat(plain)
    except ValueError:
        raise Wrong(f"{what}: {text[:60]!r} is no date such as 2026-11-26T09:40:46") from None
    return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()


def seconds(text: str, what: str) -> float | None:
    """The seconds of `1-02:03:04`, `02:03:04`, `03:04`, `2h30m`, or a number of them.

    None: `Unknown` or empty. Raises Wrong for anything else.
    """
    text = text.strip()
    if text.lower() in _NEVER:
        return None
    found_s = _duration(text, what)
    if not 0 <= found_s <= _LONGEST_S:
        raise Wrong(f"{what}: {text[:60]!r} is longer than any job")
    return found_s


def _duration(text: str, what: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    if parts := _CLOCK.fullmatch(text):
        days, hours, minutes, rest, whole_days, whole_hours = (float(part or 0) for part in parts.groups())
        return (days + whole_days) * 86400 + (hours + whole_hours) * 3600 + minutes * 60 + rest
    try:
        return parse_duration(text, what)
    except UserError:
        raise Wrong(f"{what}: {text[:60]!r} is no time such as 1-02:03:04, 02:03:04 or 2h30m") from None
