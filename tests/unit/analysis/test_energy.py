"""The power of devices and machines while steps run, and the energy of an attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis.energy import COUNTERS, Energy, energy_of
from ddlprof.analysis.run import analyse
from ddlprof.model.records import ContextRow
from ddlprof.store import load_run
from tests.golden.runs import MS, header, step, write_rank


def reading(at_ms: float, **values: float) -> ContextRow:
    """Counters at this millisecond; the rank trains from 0 to 400."""
    fields: dict[str, Any] = {"gpu_power_w": None, **values}
    return ContextRow(round(at_ms * MS), None, 1, None, None, None, **fields)


def energy(folder: Path, *ranks: list[Any]) -> Energy | None:
    for rank, records in enumerate(ranks):
        write_rank(folder, header(rank, len(ranks)), [step(n) for n in range(40)], records=records)
    return energy_of(analyse(load_run(folder))[0].ranks)


def counted(watts: float, name: str = "gpu_energy_j", begin_j: float = 5e6) -> list[Any]:
    """A counter that rises by this power while the rank trains, and by a tenth of it afterwards."""
    return [reading(ms, **{name: begin_j + watts * min(ms, 400 + (ms - 400) / 10) / 1e3}) for ms in range(50, 900, 50)]


def test_the_power_is_that_of_the_steps_and_the_energy_that_of_all(tmp_path: Path) -> None:
    found = energy(tmp_path, counted(500))
    assert found is not None
    assert found.devices is not None
    assert found.devices.source == COUNTERS
    assert found.watts == pytest.approx(500)
    assert found.joules == pytest.approx(500 * 0.350 + 50 * 0.450)
    assert found.hosts is None


def test_a_rank_without_counters_leaves_the_sum_unknown(tmp_path: Path) -> None:
    assert energy(tmp_path, counted(500), []) is None
