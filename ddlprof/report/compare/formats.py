"""The formats of `ddlprof compare`, by name: a new one is one file beside this and one line here."""

from __future__ import annotations

from collections.abc import Callable

from ddlprof.report.compare import json, markdown, table
from ddlprof.report.compare.data import ComparisonData

FORMATS: dict[str, Callable[[ComparisonData], str]] = {
    "table": table.render,
    "json": json.render,
    "markdown": markdown.render,
}
"""The functions by format; each text ends with a line end."""
