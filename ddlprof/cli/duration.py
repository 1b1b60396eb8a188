"""Durations as people type them: 12h, 90m, 1d, 2h30m."""

from __future__ import annotations

import re

from ddlprof.model.errors import UserError

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
