"""What `ddlprof doctor` finds out, as plain data."""

from __future__ import annotations

from typing import NamedTuple

OK, LIMITED, MISSING = "ok", "limited", "missing"


class Check(NamedTuple):
    """One thing that can be measured on this machine, or not."""

    name: str
    state: str
    """OK, LIMITED or MISSING."""
    meaning: str
    """One line: what follows from it, or what to do."""
    needed: bool = False
    """Without it `ddlprof run` cannot work at all."""


def can_run(checks: list[Check]) -> bool:
    """Whether `ddlprof run` works here, however little it measures."""
    return not any(check.needed and check.state == MISSING for check in checks)
