"""What has a line in the list of `ddlprof fleet`, and how each is rendered."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.report.fleet.formats import FleetLines, Listing

_FILES = {"run": ("formats", "RUNS"), "node": ("nodes", "NODES"), "job": ("jobs_text", "JOBS")}
"""The file of this folder that renders each, imported when it is asked for, and the name in it."""


def renderers_of(by: str) -> dict[str, Callable[[Listing], str]]:
    """The functions by format, for a line for each run, node or job. Raises UserError for another word."""
    if by not in _FILES:
        raise UserError(f"unknown --by {by!r}; known: {', '.join(_FILES)}")
    file, name = _FILES[by]
    found: FleetLines[Any] = getattr(import_module(f"ddlprof.report.fleet.{file}"), name)
    return found.formats
