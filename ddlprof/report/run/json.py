"""The report as JSON: the fields of `ReportData`, null for what was not measured."""

from __future__ import annotations

from dataclasses import asdict

from ddlprof.report.lines import json_text
from ddlprof.report.run.data import ReportData


def render(report: ReportData) -> str:
    """The report as a JSON object, ending with a line end."""
    return json_text(asdict(report))
