"""The result of a check of `ddlprof doctor`, as plain data."""

from __future__ import annotations

from typing import NamedTuple

OK, LIMITED, MISSING = "ok", "limited", "missing"


class Check(NamedTuple):
    """One thing that can, or cannot, be measured on this machine."""

    name: str
    state: str
    """The state: OK, LIMITED or MISSING."""
    meaning: str
    """What follows from the state, or what to do, in one line."""
    needed: bool = False
    """Whether `ddlprof run` needs it to work at all."""


def can_run(checks: list[Check]) -> bool:
    """Whether `ddlprof run` works here, even if it measures little."""
    return not any(check.needed and check.state == MISSING for check in checks)
