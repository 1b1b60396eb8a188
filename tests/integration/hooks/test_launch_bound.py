"""Devices that wait for their host, and hosts that wait for their device: what the verdict says of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddlprof.analysis.run import analyse
from ddlprof.collect.accelerator import known
from ddlprof.collect.accelerator.cuda import Cuda
from ddlprof.collect.accelerator.generic import Generic
from ddlprof.collect.session import Session
from ddlprof.model.options import Options
from ddlprof.report.run import text as card
from ddlprof.report.run.data import ReportData, build_report
from ddlprof.store import load_run
from scripts.lab.simulated_cuda import Machine

US = 1_000


class Slow(nn.Linear):
    """Takes a while on the host before it launches what takes a while on the device."""

    host_us = device_us = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.machine.clock.work(self.host_us * US)
        torch.cuda._sleep(self.device_us * US)
        return super().forward(x)

    machine: Machine


@pytest.fixture
def trained(machine: Machine, tmp_path: Path) -> Callable[..., ReportData]:
    """The report of a training whose layers take so long on the host and on the device."""

    def train(host_us: int, device_us: int, after_step: Callable[[torch.Tensor], object] = id) -> ReportData:
        layer = type("Layer", (Slow,), {"machine": machine, "host_us": host_us, "device_us": device_us})
        session = Session(Options(out=str(tmp_path / "run"), quiet=True), "simulated", [])
        session.begin()
        try:
            net = nn.Sequential(*(layer(4, 4) for _ in range(10))).to("cuda")
            optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
            x = torch.ones(2, 4, device="cuda")
            for _ in range(40):
                optimizer.zero_grad()
                loss = net(x).sum()
                loss.backward()
                optimizer.step()
                after_step(loss)
        finally:
            session.finish("ok", 0)
        run = load_run(tmp_path / "run")
        return build_report(run, analyse(run), time.time_ns())

    return train


WAITING_FOR_RESULTS = [pytest.param(id, id="free"), pytest.param(lambda loss: loss.item(), id="item")]


@pytest.mark.parametrize("after_step", WAITING_FOR_RESULTS)
def test_a_device_that_waits_for_launches(
    trained: Callable[..., ReportData], after_step: Callable[..., object]
) -> None:
    report = trained(400, 5, after_step)
    assert report.verdict is not None
    assert report.verdict.name == "LAUNCH-BOUND"
    assert "behind the host" in report.verdict.why
    assert "faster" not in report.verdict.next
    (finding,) = [finding for finding in report.findings if finding.rule == "launch_bound"]
    assert finding.about == "compute"
    assert "reduce-overhead" in finding.next


@pytest.mark.parametrize("kinds", [(Cuda,), (Generic,)])
def test_windows_are_proposed_where_the_device_has_a_profiler(
    trained: Callable[..., ReportData], kinds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated device has none, which only the general accelerator asks for at once."""
    monkeypatch.setattr(known, "KINDS", kinds)
    report = trained(400, 5)
    assert report.verdict is not None
    assert report.verdict.name == "LAUNCH-BOUND"
    lines = card.render(report).splitlines()
    assert any("--profiler-windows 3" in line for line in lines) is (kinds == (Cuda,))


@pytest.mark.slow
@pytest.mark.parametrize("after_step", WAITING_FOR_RESULTS)
@pytest.mark.parametrize("host_us", [5, 300])
def test_a_host_that_is_ahead(
    trained: Callable[..., ReportData], host_us: int, after_step: Callable[..., object]
) -> None:
    report = trained(host_us, 400, after_step)
    assert report.verdict is not None
    assert report.verdict.name == "COMPUTE-BOUND"
    assert "launch_bound" not in [finding.rule for finding in report.findings]


def test_launches_that_wait_for_their_kernels(
    trained: Callable[..., ReportData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lag of nothing says nothing then."""
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    report = trained(5, 400, lambda loss: loss.item())
    assert report.verdict is not None
    assert report.verdict.name == "COMPUTE-BOUND"


def test_what_takes_longer_comes_first(trained: Callable[..., ReportData], machine: Machine) -> None:
    """What the device waits for while it has nothing to compute is another class."""
    report = trained(400, 5, lambda loss: machine.clock.work(20_000 * US))
    assert report.verdict is not None
    assert report.verdict.name == "OTHER-BOUND"
