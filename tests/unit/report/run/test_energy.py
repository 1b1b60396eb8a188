"""The energy of a run on its card: of a step, of each class, and of all attempts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.run import Attempt, analyse
from ddlprof.report.run.energy import energy_line, energy_text
from ddlprof.report.run.rates import Rates
from ddlprof.store import load_run
from tests.golden.runs import header, step, write_rank
from tests.unit.analysis.test_energy import counted


@pytest.fixture
def attempts(tmp_path: Path) -> list[Attempt]:
    """An attempt that ended before it was measured, and one at 500 W."""
    steps = [step(n) for n in range(40)]
    for number, records in enumerate(([], counted(500))):
        write_rank(tmp_path, replace(header(0, 1), attempt=number), steps, records=records)
    return analyse(load_run(tmp_path))


def test_a_step_has_the_energy_of_its_classes(attempts: list[Attempt]) -> None:
    found = energy_line(attempts, attempts[1], Rates(samples_per_s=1000), carbon_g_per_kwh=400)
    assert found is not None
    assert found.sample_j == pytest.approx(0.5)
    assert sum(found.classes_j.values()) == pytest.approx(found.step_j)
    assert found.co2_g == pytest.approx(400 * found.kwh)


def test_attempts_that_were_not_measured_are_not_in_all(attempts: list[Attempt]) -> None:
    whole = energy_line(attempts[1:], attempts[1], Rates())
    assert whole is not None
    assert energy_text(whole).endswith("Wh in all")
    found = energy_line(attempts, attempts[1], Rates())
    assert found is not None
    assert found.kwh == whole.kwh
    assert energy_text(found).endswith("Wh without 1 attempt")
