"""What has a line in the list of `ddlprof fleet`, and how each is rendered."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ddlprof.base.errors import UserError
from ddlprof.report.fleet.formats import Listing

_FILES = {"run": "formats", "node": "nodes", "job": "jobs_text"}
"""The file of this folder that renders each, imported when it is asked for."""


def renderers_of(by: str) -> dict[str, Callable[[Listing], str]]:
    """The functions by format, for a line for each run, node or job. Raises UserError for another word."""
    if by not in _FILES:
        raise UserError(f"unknown --by {by!r}; known: {', '.join(_FILES)}")
    found: dict[str, Callable[[Listing], str]] = import_module(f"ddlprof.report.fleet.{_FILES[by]}").FORMATS
    return found
