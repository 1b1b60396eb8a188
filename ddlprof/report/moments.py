"""Moments as people read them: always in UTC, so that a report says the same wherever it is made."""

from __future__ import annotations

from datetime import datetime, timezone

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
