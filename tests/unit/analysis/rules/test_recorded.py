"""Rules on run directories of jobs on devices that this machine does not have, written as a rank writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis.findings import Finding
from ddlprof.analysis.run import analyse
from ddlprof.model.manifest import Manifest
from ddlprof.model.operators import OperatorsFile, StepOperators
from ddlprof.model.records import CollectiveShape, CollectiveTimes, ContextRow, WindowRow
from ddlprof.report.run.data import build_report
from ddlprof.store import load_run
from tests.golden.runs import MS, NOW_UNIX_NS, Record, header, manifest, step, with_collectives, write_rank
from tests.unit.analysis.rules.test_rules import products

GIB = 2**30
STEPS = 120
H100 = "NVIDIA H100 80GB HBM3"
HEAT, POWER_CAP, IDLE = 0x20, 0x04, 0x01


def write(
    directory: Path, ranks: dict[int, Sequence[float]], records: dict[int, list[Record]], **training: Any
) -> None:
    """Ranks whose steps compute that many milliseconds each, one after the other."""
    for rank, compute_ms in ranks.items():
        start, rows = 0.0, []
        for number, milliseconds in enumerate(compute_ms):
            rows.append(step(number, milliseconds, 1, 1, start_ms=start))
            start += milliseconds + 2
        write_rank(directory, header(rank, len(ranks), device=H100), rows, records=records.get(rank, []))
    described = manifest(len(ranks))
    described.host |= {"gpu_memory_bytes": [80 * GIB] * len(ranks)}
    described.training = replace(described.training, precision="amp-bf16", **training)
    described.write(directory)


def findings(directory: Path) -> dict[str, Finding]:
    run = load_run(directory)
    return {finding.rule: finding for finding in build_report(run, analyse(run), NOW_UNIX_NS).findings}


def reading(
    at_ms: float, clock: float | None = 1900, reasons: int | None = 0, celsius: float = 60, **more: int | None
) -> ContextRow:
    return ContextRow(
        round(at_ms * MS), 20.0, 8 * GIB, GIB, 99.0, 40 * GIB, 600.0,
        gpu_clock_mhz=clock, gpu_temperature_c=celsius, gpu_throttle_reasons=reasons, gpu_power_limit_w=700.0, **more,
    )  # fmt: skip


def readings(held_from: int, number: int = 24, **held: Any) -> list[Record]:
    """One for each half second; from `held_from` on the device is held down."""
    return [reading(500 * n, **(held if n >= held_from else {})) for n in range(1, number + 1)]


HOT = {"clock": 1300.0, "reasons": HEAT, "celsius": 87.0}
SLOWER = [98.0] * 60 + [140.0] * 60


def test_a_device_that_gets_hot(tmp_path: Path) -> None:
    write(tmp_path, {0: SLOWER}, {0: readings(13, 30, **HOT)})
    finding = findings(tmp_path)["throttling"]
    assert finding.ranks == (0,)
    assert "by heat" in finding.title
    assert "1300 MHz" in finding.evidence
    assert "87 °C" in finding.evidence
    assert 0.015 < (finding.gain_s or 0) < 0.03
    assert "cooling" in finding.next


def test_one_that_is_held_down_all_the_time_is_compared_with_the_others(tmp_path: Path) -> None:
    slow = {"clock": 1300.0, "reasons": POWER_CAP}
    write(tmp_path, {0: [98.0] * STEPS, 1: [140.0] * STEPS}, {0: readings(99), 1: readings(0, 34, **slow)})
    finding = findings(tmp_path)["throttling"]
    assert finding.ranks == (1,)
    assert "power limit" in finding.title
    assert "nvidia-smi -pl" in finding.next


@pytest.mark.parametrize(
    ("compute_ms", "rows"),
    [
        (SLOWER, readings(99, 30)),
        (SLOWER, readings(13, 30, clock=1300.0, reasons=IDLE)),
        (SLOWER, readings(13, 30, clock=1880.0, reasons=POWER_CAP)),
        ([98.0] * STEPS, readings(13, 24, **HOT)),
        (SLOWER, readings(28, 30, **HOT)),
        (SLOWER, readings(0, 30, **HOT)),
        (SLOWER, readings(13, 30, clock=None, reasons=HEAT)),
        (SLOWER, []),
    ],
    ids=["free", "idle", "clock stays", "computes as fast", "a spike", "nothing to compare", "no clock", "no readings"],
)
def test_it_is_not_claimed_without_all_of_the_signs(
    tmp_path: Path, compute_ms: list[float], rows: list[Record]
) -> None:
    write(tmp_path, {0: compute_ms}, {0: rows})
    assert "throttling" not in findings(tmp_path)


def test_memory_of_a_device_that_creeps(tmp_path: Path) -> None:
    leak: list[Record] = [reading(500 * n, gpu_peak_allocated_bytes=40 * GIB + n * 2**28) for n in range(1, 24)]
    write(tmp_path / "leak", {0: [98.0] * STEPS}, {0: leak})
    finding = findings(tmp_path / "leak")["memory_creep"]
    assert finding.severity == "critical"
    assert "on the device of rank 0" in finding.evidence
    assert "out of memory in 1 minute" in finding.evidence
    full: list[Record] = [reading(500 * n, gpu_peak_allocated_bytes=70 * GIB) for n in range(1, 24)]
    write(tmp_path / "full", {0: [98.0] * STEPS}, {0: full})
    assert findings(tmp_path / "full") == {}


@pytest.mark.parametrize(
    ("parts", "grows"),
    [
        (range(23), True),
        ([None if n % 2 else n for n in range(23)], True),
        ([None if n % 3 else n for n in range(23)], False),
        ([n % 12 for n in range(23)], False),
        ([min(n, 14) for n in range(23)], False),
        ([0, 1] * 11, False),
    ],
    ids=["kept", "seldom read", "hardly read", "workers start anew", "filled", "others come and go"],
)
def test_memory_of_workers_that_creeps(tmp_path: Path, parts: Sequence[int | None], grows: bool) -> None:
    new = [None if part is None else part * 2**27 for part in parts]
    rows: list[Record] = [reading(500 * n, workers_new_bytes=each) for n, each in enumerate(new, 1)]
    write(tmp_path, {0: [98.0] * STEPS}, {0: rows}, loader_workers=2)
    assert ("worker_memory" in findings(tmp_path)) is grows


def test_kernels_that_take_longer_to_launch_than_to_run(tmp_path: Path) -> None:
    for name, kernels, work_ms in (("launches", 4000, 150), ("computes", 4000, 280), ("few", 40, 150)):
        windows: list[Record] = [WindowRow(40, 3, 300 * MS, work_ms * MS, 0, kernels)]
        write(tmp_path / name, {0: [98.0] * STEPS}, {0: windows})
    assert "1333 kernels a step" in findings(tmp_path / "launches")["launch_bound"].evidence
    assert findings(tmp_path / "computes") == {}
    assert findings(tmp_path / "few") == {}


def test_a_vocabulary_that_does_not_suit_tensor_cores(tmp_path: Path) -> None:
    for vocabulary in (50_257, 50_304):
        directory = tmp_path / str(vocabulary)
        write(directory, {0: [98.0] * STEPS}, {})
        described = Manifest.read(directory)
        described.model.compiled = False
        described.write(directory)
        OperatorsFile(described.job_id, StepOperators(8, "amp-bf16", products(vocabulary))).write(directory)
    (finding,) = findings(tmp_path / "50257").values()
    assert (finding.rule, finding.severity) == ("alignment", "info")
    assert "50,257" in finding.evidence
    assert finding.next.startswith("pad 50,257 to 50,304 ")
    assert 0.03 < (finding.gain_s or 0) < 0.098 * 0.6
    assert findings(tmp_path / "50304") == {}


@pytest.mark.parametrize(("pinned", "action"), [(False, "pin_memory=True"), (True, "a stream of its own")])
def test_copies_that_computing_waits_for(tmp_path: Path, pinned: bool, action: str) -> None:
    rows = [replace(step(n, 60, 1, 1), h2d_ns=20 * MS, step_ns=82 * MS, start_ns=n * 82 * MS) for n in range(60)]
    write_rank(tmp_path, header(device=H100), rows)
    described = manifest()
    described.training = replace(described.training, precision="bf16", pin_memory=pinned)
    described.write(tmp_path)
    assert action in findings(tmp_path)["pinning"].next


def test_one_large_message_after_backward(tmp_path: Path) -> None:
    size = 400_000_000
    for rank in (0, 1):
        rows = []
        for number in range(40):
            row = replace(step(number, 60, 1, 1, 38), compute_backward_ns=40 * MS)
            rows.append(with_collectives(row, (number,)))
        times = [CollectiveTimes(61_000, 99_000, 61_000, 38_000)] * 40
        head = header(rank, 2, node="ab"[rank], device=H100)
        write_rank(tmp_path, head, rows, [CollectiveShape("0", "allreduce", size, 2)], times)
    described = manifest(2)
    described.model.gradient_bytes = size
    described.training.precision = "bf16"
    described.write(tmp_path)
    finding = findings(tmp_path)["bucket_size"]
    assert "one message" in finding.title
    assert 0 < (finding.gain_s or 0) < 0.038


def test_ranks_of_one_machine_that_are_slow_together(tmp_path: Path) -> None:
    for rank in range(4):
        compute, wait = (60, 20) if rank < 2 else (80, 0)
        rows = [with_collectives(step(n, compute, 0, 1, wait + 4), (n,)) for n in range(40)]
        times = [CollectiveTimes(1000 * compute, 84_000, 1000 * compute, 1000 * (wait + 4))] * 40
        head = header(rank, 4, node="ab"[rank // 2], device=H100)
        write_rank(tmp_path, head, rows, [CollectiveShape("0", "allreduce", 1000, 4)], times)
    manifest(4).write(tmp_path)
    found = findings(tmp_path)
    assert "node 1" in found["slow_host"].title
