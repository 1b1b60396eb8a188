"""The report as JSON: the fields of `ReportData`, null for what was not measured."""

from __future__ import annotations

import json
from dataclasses import asdict

from ddlprof.report.run.data import ReportData


def render(report: ReportData) -> str:
    """The report as a JSON object, ending with a line end."""
    return json.dumps(asdict(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
