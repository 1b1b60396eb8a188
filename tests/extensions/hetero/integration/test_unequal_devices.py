"""Stages on processes that stand for unequal devices: a model that fits on none of them trains."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddlprof.extensions.hetero.stages.problem import fits
from ddlprof.extensions.hetero.stages.search import make_staged_plan
from scripts.bench.stages import MIB, Scenario, alone, problem, traced, train
from scripts.lab.unequal_devices import NetSizes, SlowDevice, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.dist,
    pytest.mark.skipif(sys.platform != "linux", reason="memory of a process is limited by Linux"),
]
SMALL = Scenario(
    "small", NetSizes(512, 8, 2), (SlowDevice("fast", 4.0, 100), SlowDevice("slow", 2.0, 120)), batch=8
)  # fmt: skip


def test_what_fits_on_none_of_them_trains_on_all(tmp_path: Path) -> None:
    """The limits are the operating system's: one device cannot have the model, and two have it as planned."""
    measured = run(tmp_path / "measure", "measure", list(SMALL.devices), SMALL.net)
    staged = problem(SMALL, traced(SMALL.net), measured)
    plan = make_staged_plan(staged)
    assert plan is not None
    assert fits(staged, plan.best.strategy)
    assert plan.uniform is None or plan.best.step.step_s <= plan.uniform.step.step_s
    ranks = train(tmp_path / "train", SMALL, staged, plan.best, steps=4)
    assert not any("failed" in rank for rank in ranks)
    losses = next(rank["losses"] for rank in ranks if rank["losses"][0] is not None)
    assert losses == sorted(losses, reverse=True)  # it learns the one batch that it has
    for rank, device in zip(ranks, plan.best.strategy.used, strict=True):
        assert 0 < rank["used_mib"] <= plan.best.step.memory_bytes[device] / MIB
        assert len(rank["steps_s"]) == 4
    for device in range(2):
        assert "memory" in alone(tmp_path / f"alone-{device}", SMALL, device)["failed"]
