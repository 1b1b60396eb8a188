"""What is kept of readings while a run is followed: energy so far, and counters of a sick machine."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddlprof.live import words
from ddlprof.live.figures import FIGURES
from ddlprof.live.follower import RunFollower
from ddlprof.live.readings import EnergyMeter, HealthReadings
from ddlprof.live.snapshot import Observer, Snapshot
from ddlprof.model.health import HealthReading
from ddlprof.model.records import ContextRow
from ddlprof.writing.writer import RankWriter
from tests.golden.runs import MS, SHAPES, ddp_step, header, manifest, write_rank
from tests.unit.live.runs import GrowingRun
from tests.unit.live.test_screen import text_of

NAN = float("nan")


def add(meter: EnergyMeter, *readings: tuple[float, float]) -> None:
    """Adds readings: the second, and the energy."""
    seconds, joules = np.array(readings).T
    meter.add(seconds * 1e9, joules)


def reading(second: int, device_j: float | None, host_j: float) -> ContextRow:
    row = ContextRow(second * 1000 * MS, 50.0, 1 << 30, 100 << 20, None, None, None)
    return replace(row, gpu_energy_j=device_j, host_energy_j=host_j)


def test_energy_adds_up_over_pieces_of_a_file() -> None:
    meter = EnergyMeter()
    add(meter, (0, NAN))
    assert (meter.joules, meter.watts) == (None, None)
    add(meter, (1, 1000), (2, NAN), (3, 1400))
    assert (meter.joules, meter.watts) == (400, 200)
    add(meter, (4, 1700))
    assert (meter.joules, meter.watts) == (700, 300)
    add(meter, (5, 50), (6, 150))  # the counter began anew in between
    assert (meter.joules, meter.watts) == (800, 300)


def test_the_power_is_that_of_the_last_minute() -> None:
    meter = EnergyMeter()
    add(meter, *((second, 100 * second if second < 100 else 10_000 + 500 * (second - 100)) for second in range(200)))
    assert meter.watts == 500


def test_what_is_needed_of_readings_is_kept() -> None:
    kept = HealthReadings()
    swaps = [HealthReading(second, "swap_pages", "", second) for second in range(0, 100, 10)]
    kept.add([HealthReading(0, "pcie_lanes_missing", "", 8), *swaps])
    kept.drop_before(75)
    kept.drop_before(75)
    assert [(each.counter, each.time_ns) for each in kept.readings] == [
        ("pcie_lanes_missing", 0), ("swap_pages", 70), ("swap_pages", 80), ("swap_pages", 90),
    ]  # fmt: skip


def energy_of_two_ranks(folder: Path, note: bool = False) -> Snapshot:
    """Two ranks of two minutes, on one machine each, looked at every ten seconds. Rank r draws 200 + 100 r watts."""
    run = GrowingRun(folder, ranks=2)
    run.writers = [RankWriter(replace(head, node_id=f"n{head.rank}")) for head in run.heads]
    run.begin()
    observer = Observer(RunFollower(folder))
    for begin in range(0, 120, 10):
        run.train(10)
        for rank, writer in enumerate(run.writers):
            power = 200.0 + 100 * rank
            for second in range(begin, begin + 10):
                writer.context(reading(second, 5000 + power * second, 80.0 * second))
            if note:
                writer.note("context", "the counters of the device are those of two processes")
            writer.flush()
        snapshot = observer.look(time.time_ns())
    return snapshot


def two_machines(folder: Path, *pages_per_s: int) -> Snapshot:
    """Two ranks of two minutes, on one machine each, which swap so many pages a second. Rank 1 is always late."""
    for rank, pages in enumerate(pages_per_s):
        made = [ddp_step(rank, number) for number in range(1200)]
        swaps = [
            HealthReading(second * 1000 * MS, "swap_pages", "", 7 + second * pages) for second in range(0, 121, 10)
        ]
        head = replace(header(rank, 2, node="ab"[rank]), host=f"host-{rank}")
        times = [each for _, times in made for each in times]
        write_rank(folder, head, [row for row, _ in made], SHAPES, times, swaps)
    manifest(2).write(folder)
    return Observer(RunFollower(folder)).look(time.time_ns())


def values(snapshot: Snapshot) -> dict[tuple[str, ...], float]:
    return {(figure.prometheus, *labels): value for figure in FIGURES for labels, value in figure.points(snapshot)}


def test_energy_is_told_by_rank_and_by_machine(tmp_path: Path) -> None:
    found = values(energy_of_two_ranks(tmp_path))
    for rank, power in (("0", 200), ("1", 300)):
        assert found["ddlprof_device_energy_joules", rank] == pytest.approx(119 * power)
        assert found["ddlprof_device_power_watts", rank] == pytest.approx(power)
        assert found["ddlprof_host_energy_joules", rank] == pytest.approx(119 * 80)
        assert found["ddlprof_host_power_watts", rank] == pytest.approx(80)


def test_one_rank_tells_of_its_machine(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, ranks=2).begin()
    run.train(20)
    assert not any("host" in key[0] for key in values(Observer(RunFollower(tmp_path)).look(time.time_ns())))
    for rank, writer in enumerate(run.writers):
        for second in (1, 2, 3):
            writer.context(reading(second, None, 50.0 * second + rank))
        writer.flush()
    found = values(Observer(RunFollower(tmp_path)).look(time.time_ns()))
    assert {key: value for key, value in found.items() if "host" in key[0]} == {
        ("ddlprof_host_energy_joules", "0"): 100, ("ddlprof_host_power_watts", "0"): 50,
    }  # fmt: skip


def test_a_sick_machine_is_one_line(tmp_path: Path) -> None:
    snapshot = two_machines(tmp_path, 0, 500)
    assert snapshot.late_rank == 1
    said = words.sick(snapshot)
    assert said == "machine of rank 1 (host-1) is not well: 500 pages swapped in or out a second"
    assert said in words.line(snapshot)
    (line,) = [line for line in text_of(snapshot).splitlines() if line.startswith("Sick")]
    assert line == f"Sick     {said}"
    assert values(snapshot)["ddlprof_sick_machine", "1", "swap_pages"] == 1


def test_what_moves_on_all_machines_is_not_named(tmp_path: Path) -> None:
    snapshot = two_machines(tmp_path, 500, 500)
    assert snapshot.late_rank == 1
    assert words.sick(snapshot) == ""
