"""The energy of processors and memory, from files such as Linux's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.collect.facts.host_energy import HostEnergy


def domain(powercap: Path, folder: str, name: str, energy_uj: int, most_uj: int = 262_143_328_850) -> Path:
    where = powercap / folder
    where.mkdir(exist_ok=True)
    (where / "name").write_text(f"{name}\n")
    (where / "max_energy_range_uj").write_text(f"{most_uj}\n")
    (where / "energy_uj").write_text(f"{energy_uj}\n")
    return where / "energy_uj"


def test_a_counter_begins_anew_at_its_limit(tmp_path: Path) -> None:
    file = domain(tmp_path, "intel-rapl:0", "package-0", 900_000, most_uj=1_000_000)
    energy = HostEnergy(tmp_path)
    energy.joules()
    file.write_text("250000")
    assert energy.joules() == pytest.approx(0.35)


def test_without_permission_or_counters_nothing_is_told(tmp_path: Path) -> None:
    assert HostEnergy(tmp_path).joules() is None
    assert HostEnergy(tmp_path / "none").joules() is None
    domain(tmp_path, "intel-rapl:0", "package-0", 1)
    file = domain(tmp_path, "intel-rapl:1", "package-1", 1)
    file.unlink()
    file.mkdir()  # no permission: root may read any file
    assert HostEnergy(tmp_path).joules() is None


def test_a_counter_that_goes_away_is_not_told_any_more(tmp_path: Path) -> None:
    file = domain(tmp_path, "intel-rapl:0", "package-0", 1)
    energy = HostEnergy(tmp_path)
    assert energy.joules() == 0
    file.unlink()
    assert energy.joules() is None
    domain(tmp_path, "intel-rapl:0", "package-0", 1)
    assert energy.joules() is None
