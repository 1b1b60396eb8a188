"""The formats of `ddlprof compare`, by name: a new one is one file beside this and one line here."""

from __future__ import annotations

from collections.abc import Callable

from ddlprof.report.compare import html, markdown, text
from ddlprof.report.compare.data import ComparisonData
from ddlprof.report.json_csv import json_of

FORMATS: dict[str, Callable[[ComparisonData], str]] = {
    "table": text.render,
    "json": json_of,
    "markdown": markdown.render,
    "html": html.render,
}
"""The functions by format; each text ends with a line end."""
