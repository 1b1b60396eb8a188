"""Scripts after complaints of users, run for real: with the fault, and cured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.bench.complaints import CURED, FAULT, OWN, cases_of, judge, run


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize(
    "name", ["table_rows", "metric_by_class", pytest.param("ranks_validate_all", marks=pytest.mark.nightly)]
)
def test_the_board_reads_a_pair(name: str, tmp_path: Path) -> None:
    """Both forms train to their end, both clocks are read, and a run that is kept is not made again."""
    (case,) = (each for each in cases_of(OWN) if each.name == name)
    fault, cured = (run(case, form, tmp_path) for form in (FAULT, CURED))
    assert fault.own["steps"] == cured.own["steps"] == fault.report["steps"] == cured.report["steps"]
    judged = judge(case, fault, cured)
    assert judged.reached is not None
    assert judged.verdict
    assert run(case, FAULT, tmp_path).folder == fault.folder
