"""Names that would forge a line, in what this room shows."""

from __future__ import annotations

from ddlprof.extensions.characterize import report
from tests.unit.cli.test_hostile_names import shows_names


def test_a_comparison() -> None:
    shows_names(lambda name: report.as_table(report.Comparison(name, name, 1.0, [], [], [name])))
