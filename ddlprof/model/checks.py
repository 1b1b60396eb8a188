"""What `ddlprof doctor` finds out, as plain data."""

from __future__ import annotations

from typing import NamedTuple

OK, LIMITED, MISSING = "ok", "limited", "missing"


class Check(NamedTuple):
    """One thing that can be measured on this machine, or not."""

    name: str
    state: str
    """The state: OK, LIMITED or MISSING."""
    meaning: str
    """One line about what follows from the state, or what to do."""
    needed: bool = False
    """Whether `ddlprof run` cannot work at all without it."""


def can_run(checks: list[Check]) -> bool:
    """Whether `ddlprof run` works here, however little it measures."""
    return not any(check.needed and check.state == MISSING for check in checks)
