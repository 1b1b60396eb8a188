"""The formats of `ddlprof report`, by name: a new one is one file beside this and one line here."""

from __future__ import annotations

from collections.abc import Callable

from ddlprof.report.run import card, json
from ddlprof.report.run.data import ReportData

FORMATS: dict[str, Callable[[ReportData], str]] = {"table": card.render, "json": json.render}
"""The functions by format; each renders a report as text that ends with a line end."""
