"""Names that would forge a line, in what this room shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddlprof.extensions.fusion import report, results
from tests.unit.cli.test_hostile_names import shows_names


@pytest.mark.parametrize("render", [report.as_page, report.as_csv], ids=["page", "csv"])
def test_a_sweep(render: Callable[[results.Result], str]) -> None:
    shows_names(lambda name: render(sweep(name)))


def sweep(name: str) -> results.Result:
    trial = results.Trial(0, {name: name}, False, 1, 0.5)
    part = results.TrialGroup({name: name}, (0,), reason=name, notes=(name,))
    return results.Result(name, name, name, 1, name, [part, part], [trial], True)
