"""The output of `ddlprof doctor`: an aligned table for people, JSON for programs."""

from __future__ import annotations

from ddlprof.base.text import text_of
from ddlprof.model.checks import Check, can_run
from ddlprof.report.json_csv import json_text
from ddlprof.report.text import aligned

_HEADER = ("check", "state", "what it means / what to do")


def as_table(checks: list[Check]) -> str:
    """A table with one line for each check, ending with a line end."""
    rows = [_HEADER, *((check.name, check.state, check.meaning) for check in checks)]
    return text_of(aligned(rows))


def as_json(checks: list[Check]) -> str:
    """`{"can_run": ..., "checks": [{"name": ..., "state": ..., "meaning": ..., "needed": ...}, ...]}`."""
    return json_text({"can_run": can_run(checks), "checks": [check._asdict() for check in checks]})
