"""A whole sweep on a simulated GPU: mixed precision and memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddlprof.extensions.fusion.apart import HERE
from ddlprof.extensions.fusion.halving import Halving
from ddlprof.extensions.fusion.job import run
from ddlprof.extensions.fusion.loop import SweepLength
from ddlprof.extensions.fusion.memory import free_bytes
from ddlprof.extensions.fusion.planner import FuseOptions
from ddlprof.extensions.fusion.report import as_page
from ddlprof.extensions.fusion.results import Result
from ddlprof.extensions.fusion.task import TaskSpec
from scripts.lab import simulated_cuda

NETS = """
import torch
from torch import nn

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()

def make():
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2))

def batches():
    for rows in torch.arange(len(X)).split(16):
        yield X[rows], Y[rows]
"""


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """All trains in this process, the only one that has the simulated GPU."""
    monkeypatch.setattr("ddlprof.extensions.fusion.job.way_of_processes", lambda can_spawn: HERE)
    (tmp_path / "made_up_on_cuda.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "made_up_on_cuda"


def swept(module: str, precision: str, force: bool) -> Result:
    names = TaskSpec(f"{module}:make", f"{module}:batches", device="cuda", precision=precision)
    options = FuseOptions(SweepLength(8, 1), None if force else 1, force=force, beside=0, budget_s=0.01)
    return run(names, {"lr": [0.01, 0.02, 0.04]}, options)


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_a_sweep_has_the_losses_of_one_after_another(names: str, precision: str) -> None:
    with simulated_cuda.simulated() as machine:
        together = swept(names, precision, force=True)
        alone = swept(names, precision, force=False)
        assert machine.contexts == {0}
    (part,) = together.parts
    assert part.fuse
    assert not part.notes
    assert [trial.loss for trial in together.trials] == pytest.approx([each.loss for each in alone.trials], rel=1e-2)
    assert part.peak_memory_bytes is not None
    assert "GiB of tensors at most" in as_page(together)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "off"), [("fp32", 1e-4), ("amp-fp16", 3e-2)])
def test_groups_that_wait_on_the_host_and_several_batches(names: str, precision: str, off: float) -> None:
    task = TaskSpec(
        f"{names}:make", f"{names}:batches", device="cuda", precision=precision, schedule="cosine", grad_accum=3
    )
    found = []
    with simulated_cuda.simulated():
        for most in (2, 1):
            options = FuseOptions(SweepLength(16, 1), most, force=True, beside=0, budget_s=0.01, halving=Halving(2))
            found.append(run(task, {"lr": [0.001, 0.01, 0.05, 0.1]}, options).trials)
    assert [each.fused for trials in found for each in trials] == [True] * 4 + [False] * 4
    for one, other in zip(*found, strict=True):
        assert (one.steps, one.stopped) == (other.steps, other.stopped)
        assert one.loss == pytest.approx(other.loss, rel=off)
    assert sorted(each.steps for each in found[0]) == [4, 4, 8, 16]


def test_memory_that_torch_holds_in_reserve_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_cuda.simulated():
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 700)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 300)
        assert free_bytes(torch.device("cuda")) == 2**33 + 400
