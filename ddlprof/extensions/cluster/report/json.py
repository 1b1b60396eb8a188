"""Simulations as JSON: the fields of `SimulatedData` but the curves, null for what is not known."""

from __future__ import annotations

from dataclasses import asdict

from ddlprof.extensions.cluster.report.data import SimulatedData
from ddlprof.report.json_csv import json_text

_CURVES = ("over_time", "completion_cdf")
"""Curves, which are left out here: they are in the files of --format csv."""


def render(data: SimulatedData) -> str:
    """A JSON object, ending with a line end."""
    value = asdict(data)
    for block in value["blocks"]:
        for line in block["policies"]:
            for name in _CURVES:
                del line[name]
    return json_text(value)
