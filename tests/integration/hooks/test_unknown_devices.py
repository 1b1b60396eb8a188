"""Trainings on kinds of devices that nobody has timed steps on: no class that the host's clock cannot tell."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddlprof.analysis.run import analyse
from ddlprof.collect.accelerator import known
from ddlprof.collect.session import Session
from ddlprof.model.options import Options
from ddlprof.report.run.data import build_report
from ddlprof.store import load_run
from scripts.lab.virtual_clock import VirtualClock
from tests.integration.hooks.simulated_runs import MS, Run

STEPS = 40


class Elsewhere(torch.Tensor):
    """Says that it is on a device of another kind; computed on the host, as nobody has such a device."""

    kind: str

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(type(self).kind, 0)


@pytest.mark.parametrize("kind", ["xpu", "hpu", "mps", "mtia", "privateuseone"])
def test_no_class_is_told_but_the_wait_for_batches(
    kind: str, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "KINDS", ())  # a Mac's torch knows one of them

    class Tensor(Elsewhere):
        pass

    Tensor.kind = kind

    class Batches(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.03)
            return torch.ones(4)

    session = Session(Options(out=str(tmp_path / "run"), quiet=True), "elsewhere", [])
    session.begin()
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(torch.ones(4, 4).as_subclass(Tensor))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for x in torch.utils.data.DataLoader(Batches()):
        loss = model(x).sum()
        time.sleep(0.1)  # the host waits for its device
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    session.finish("ok", 0)
    run = Run(tmp_path / "run")
    assert (run.header.device, run.header.clock) == (kind, "host")
    assert "of their classes only waits for batches are measured" in run.notes["device"]
    assert run.notes["device"].startswith(f"{kind}: ")
    for row in run.rows:
        assert row.compute_ns is row.compute_forward_ns is row.h2d_ns is row.comm_ns is None
    for row in run.rows[1:]:
        assert (row.data_ns, row.step_ns) == (30 * MS, 130 * MS)
    report = build_report(loaded := load_run(tmp_path / "run"), analyse(loaded), 0)
    assert report.verdict is not None
    assert report.verdict.name == "UNDECIDED"
    assert [finding for finding in report.findings if finding.about] == []
