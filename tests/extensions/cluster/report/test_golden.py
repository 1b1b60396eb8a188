"""Every report of simulations, word for word.

`python -m tests.extensions.cluster.golden.simulations` writes them anew.
"""

from __future__ import annotations

import json

from tests.extensions.cluster.golden.simulations import EXPECTED, golden_simulations
from tests.unit.report.test_golden import rounded


def test_reports_of_simulations() -> None:
    expected = {p.name: p.read_text(encoding="utf-8") for p in EXPECTED.iterdir()}
    outputs = golden_simulations()
    texts = [rounded(json.loads(each.pop("json.txt"))) for each in (outputs, expected)]
    assert texts[0] == texts[1]
    assert outputs == expected
