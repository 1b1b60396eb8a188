"""Real trainings that have a fault, and one that has none: what the rules say of each.

On a virtual clock, but for those with processes of a loader.
"""

from __future__ import annotations

import ctypes
import functools
import io
import logging
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ddlprof.analysis.findings import Finding
from ddlprof.analysis.run import analyse
from ddlprof.analysis.thresholds import FULL_CPU_PERCENT
from ddlprof.collect import helper
from ddlprof.model.manifest import Manifest
from ddlprof.report.run import text as card
from ddlprof.report.run.data import ReportData, build_report
from ddlprof.store import load_run
from scripts.lab.virtual_clock import VirtualClock
from tests.integration.hooks.conftest import Profiling

BATCH = 4


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Samples(Dataset[torch.Tensor]):
    """The first sample of a batch takes as long as `seconds` says of the batch's number, asleep or at work."""

    def __init__(self, steps: int, seconds: Callable[[int], float], burn: bool = False) -> None:
        self.steps, self.seconds, self.burn = steps, seconds, burn

    def __len__(self) -> int:
        return self.steps * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        seconds = 0 if index % BATCH else self.seconds(index // BATCH)
        if self.burn:
            burn(seconds)
        elif seconds:
            time.sleep(seconds)
        return torch.ones(4)


class Net(nn.Linear):
    """Computes for as long as on a device of its own, whatever else the machine does."""

    seconds = 0.004

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return super().forward(x)


DEVICE = SimpleNamespace(item=ctypes.CDLL(None).usleep)
"""Waits for some microseconds as for a device's result: in C, and without the interpreter's lock."""


class FarAway(logging.StreamHandler):  # type: ignore[type-arg]  # no generic class before Python 3.11
    """Writes to a file, and waits until it is there."""

    flush = staticmethod(functools.partial(DEVICE.item, 20_000))


LOGGER = logging.getLogger("train")
LOGGER.setLevel(logging.INFO)
LOGGER.propagate = False
LOGGER.addHandler(FarAway(io.StringIO()))


def train(batches: Any, after_step: Callable[[torch.Tensor], object] = lambda loss: None) -> None:
    net = Net(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x in batches:
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
        after_step(loss)


@pytest.fixture
def diagnosed(profiling: Profiling) -> Callable[..., ReportData]:
    """Trains under a session; what the report says."""

    def run(loop: Callable[[], None]) -> ReportData:
        with profiling() as profile:
            loop()
        loaded = load_run(profile.directory)
        return build_report(loaded, analyse(loaded), time.time_ns())

    return run


BUSY = ("host_contention", "shared_machine")


def rules(report: ReportData, *severities: str) -> list[str]:
    """What was found in the training; that others keep this machine's processors busy is no fault of its own."""
    wanted = severities or ("critical", "warning")
    return [f.rule for f in report.findings if f.severity in wanted and f.rule not in BUSY]


def mean_s(report: ReportData, name: str) -> float:
    mean: float | None = report.times[name].mean_s
    assert mean is not None
    return mean


def skip_if_busy(report: ReportData) -> None:
    """For trainings with processes of their own: where others compete with them, that is what is found."""
    starved = report.verdict is not None and report.verdict.queued_share is not None
    if starved or any(finding.rule in BUSY for finding in report.findings):
        pytest.skip("others keep this machine busy")


def named(report: ReportData, rule: str) -> Finding:
    (finding,) = [finding for finding in report.findings if finding.rule == rule]
    return finding


def test_nothing_is_found_where_nothing_is_wrong(diagnosed: Any, clock: VirtualClock) -> None:
    report = diagnosed(lambda: train(DataLoader(Samples(60, lambda step: 0.0), BATCH)))
    assert rules(report) == []
    assert "Also" not in card.render(report)


def test_a_slow_loader(diagnosed: Any, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine enough looks at the stack fall into these batches to name the line.
    monkeypatch.setattr("ddlprof.collect.helper.StackSampler.sample", lambda *_: None)
    report = diagnosed(lambda: train(DataLoader(Samples(60, lambda step: 0.012, burn=True), BATCH)))
    assert rules(report)[0] == "loader_workers"
    finding = named(report, "loader_workers")
    assert finding.severity == "critical"
    if "no core is free" in finding.next:
        pytest.skip("others keep this machine busy")
    assert "num_workers=" in finding.next
    assert 0 < (finding.gain_s or 0) <= mean_s(report, "data") == pytest.approx(0.012, rel=0.01)
    assert ": up to " in card.render(report)


@pytest.mark.slow
def test_a_slow_loader_with_a_worker(diagnosed: Any) -> None:
    loader = DataLoader(Samples(60, lambda step: 0.012, burn=True), BATCH, num_workers=1)
    report = diagnosed(lambda: train(loader))
    skip_if_busy(report)
    finding = named(report, "loader_workers")
    assert finding.severity == "critical"
    assert finding.next == report.verdict.next
    assert "worker" in finding.next


def test_a_slow_storage(diagnosed: Any, clock: VirtualClock) -> None:
    report = diagnosed(lambda: train(DataLoader(Samples(20, lambda step: 0.12), BATCH)))
    assert 0 < (check_storage(report).gain_s or 0) <= mean_s(report, "data")
    assert mean_s(report, "data_fetch") == pytest.approx(0.12, rel=0.01)


@pytest.mark.slow
def test_a_slow_storage_with_a_worker(diagnosed: Any) -> None:
    report = diagnosed(lambda: train(DataLoader(Samples(20, lambda step: 0.12), BATCH, num_workers=1)))
    skip_if_busy(report)
    gain_s = check_storage(report).gain_s  # no gain is told where starting more workers takes as long
    assert gain_s is None or 0 < gain_s <= mean_s(report, "data")


def check_storage(report: ReportData) -> Finding:
    assert rules(report)[0] == "storage"
    assert "loader_workers" not in rules(report)
    return named(report, "storage")


@pytest.mark.slow
def test_the_predicted_gain_is_an_upper_bound_that_is_nearly_reached(
    diagnosed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Net, "seconds", 0.06)
    samples = Samples(20, lambda step: 0.1)
    before = diagnosed(lambda: train(DataLoader(samples, BATCH)))
    finding: Any = named(before, "storage")
    told = re.search(r"num_workers=(\d+)", finding.next)
    assert told is not None
    after = diagnosed(lambda: train(DataLoader(samples, BATCH, num_workers=int(told[1]))))
    skip_if_busy(after)
    gained = before.times["step"].mean_s - after.times["step"].mean_s
    assert 0.5 < gained / finding.gain_s < 1.1


@pytest.mark.slow
def test_batches_that_take_longer_now_and_then(diagnosed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is fast enough on average."""
    monkeypatch.setattr(Net, "seconds", 0.1)
    loader = DataLoader(Samples(64, lambda step: 0.6 if step % 10 == 9 else 0.0), BATCH, num_workers=1)
    report = diagnosed(lambda: train(loader))
    skip_if_busy(report)
    assert next(each for each in rules(report) if each != "forward_alone") == "prefetch_factor"  # Net sleeps in forward
    assert "prefetch_factor=" in named(report, "prefetch_factor").next
    assert not {"storage", "loader_workers"} & set(rules(report))


@pytest.mark.parametrize(
    ("rule", "after_step"),
    [
        ("result_waits", lambda loss: DEVICE.item(20_000)),
        ("slow_line", lambda loss: time.sleep(0.02)),
        ("logging", lambda loss: LOGGER.info("%s", loss)),
    ],
)
def test_a_line_that_the_step_waits_for(diagnosed: Any, rule: str, after_step: Any) -> None:
    report = diagnosed(lambda: train([torch.ones(BATCH, 4)] * 60, after_step))
    assert rules(report)[0] == rule
    finding = named(report, rule)
    assert "test_findings.py:" in finding.evidence
    assert 0 < (finding.gain_s or 0) <= mean_s(report, "other")


def test_evaluation_every_few_steps(diagnosed: Any, clock: VirtualClock) -> None:
    held_out = [torch.ones(BATCH, 4)] * 4
    net = Net(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def loop() -> None:
        for step in range(60):
            if step % 6 == 5:
                net.eval()
                with torch.no_grad():
                    for x in held_out:
                        net(x)
                net.train()
            optimizer.zero_grad()
            net(held_out[0]).sum().backward()
            optimizer.step()

    report = diagnosed(loop)
    assert report.job is not None
    share = report.job.share("evaluation")
    assert share is not None
    assert ("evaluation_share" in rules(report)) is (share >= 0.1)  # starting takes a part of the job that is not known
    assert share > 0


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters are read as often as in a run a hundred times as long."""
    monkeypatch.setattr(helper, "_CONTEXT_S", 0.03)


def keeping(kept: list[mmap.mmap], most: int) -> Callable[[torch.Tensor], None]:
    """After each step, of half a second, a MiB more is kept; counters are read once a second.

    Not from an allocator, which may have it from what ended before.
    """

    def after_step(loss: torch.Tensor) -> None:
        if len(kept) < most:
            kept.append(mmap.mmap(-1, 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            kept[-1].write(b"1" * 2**20)
        time.sleep(0.5)

    return after_step


def test_memory_that_creeps(diagnosed: Any, clock: VirtualClock) -> None:
    kept: list[mmap.mmap] = []

    def loop() -> None:
        clock.await_thread()
        train([torch.ones(BATCH, 4)] * 100, keeping(kept, most=100))

    report = diagnosed(loop)
    finding = named(report, "memory_creep")
    assert " a step: out of memory in " in finding.evidence
    assert finding.samples >= 40


def test_memory_that_is_filled_once_does_not_creep(diagnosed: Any, clock: VirtualClock) -> None:
    kept: list[mmap.mmap] = []
    report = diagnosed(lambda: train([torch.ones(BATCH, 4)] * 150, keeping(kept, most=60)))
    assert "memory_creep" not in rules(report, *ALL)


ALL = ("critical", "warning", "info")


def test_the_threads_that_compute_are_known(profiling: Profiling) -> None:
    with profiling() as profile:
        train([torch.ones(BATCH, 4)] * 6)
    manifest = Manifest.read(Path(profile.directory))
    assert manifest.training.cpu_threads == torch.get_num_threads()


def test_more_threads_than_cores(diagnosed: Any, often: None) -> None:
    torch.set_num_threads(4 * (os.cpu_count() or 1))
    net = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.ones(512, 256)

    def loop() -> None:
        for _ in range(16):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    report = diagnosed(loop)
    if (report.context.cpu_percent or 0) < FULL_CPU_PERCENT:
        pytest.skip("this machine has processors left")
    assert "OMP_NUM_THREADS=" in named(report, "host_contention").next


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
