"""A comparison as JSON: the fields of `ComparisonData`, null for what was not measured."""

from __future__ import annotations

from dataclasses import asdict

from ddlprof.report.compare.data import ComparisonData
from ddlprof.report.lines import json_text


def render(data: ComparisonData) -> str:
    """The comparison as a JSON object, ending with a line end."""
    return json_text(asdict(data))
