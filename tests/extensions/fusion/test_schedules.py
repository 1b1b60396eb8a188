"""Schedules against torch's own, and what they may give."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.schedules import as_schedule, cosine, named_schedule, onecycle

STEPS = 40


def torchs(make: Any, lr: float) -> list[float]:
    """The learning rates of one of torch's schedulers."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr)
    scheduler, found = make(optimizer), []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_cosine_is_torchs() -> None:
    found = [cosine(step, STEPS, 0.3) for step in range(STEPS)]
    assert found == pytest.approx(torchs(lambda each: torch.optim.lr_scheduler.CosineAnnealingLR(each, STEPS), 0.3))
    ends = [cosine(step, STEPS, 0.3, final=0.1) for step in range(STEPS)]
    theirs = torchs(lambda each: torch.optim.lr_scheduler.CosineAnnealingLR(each, STEPS, 0.03), 0.3)
    assert ends == pytest.approx(theirs)


def test_warm_up_grows_to_the_rate_and_then_falls() -> None:
    found = [cosine(step, STEPS, 1.0, warmup=4) for step in range(STEPS)]
    assert found[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert found[4:] == sorted(found[4:], reverse=True)
    assert math.isclose(found[22], 0.5)


@pytest.mark.parametrize("share", [0.3, 0.1, 0.5])
def test_onecycle_is_torchs(share: float) -> None:
    def make(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.3, total_steps=STEPS + 1, pct_start=share, cycle_momentum=False
        )

    found = [onecycle(step, STEPS + 1, 0.3, share) for step in range(STEPS)]
    assert found == pytest.approx(torchs(make, 0.3))
    assert onecycle(0, 1, 0.3) > 0  # a single step


def test_a_schedule_is_given_what_it_names() -> None:
    schedule = as_schedule(lambda step, steps, lr, beta1, warmup=9: {"lr": lr * warmup, "beta1": beta1 / 2})
    assert schedule.parameters == ("lr", "beta1", "warmup")
    assert schedule.values_at(0, 9, "adam", {"lr": 0.5, "width": 3}) == {"lr": 4.5, "beta1": 0.45}
    assert schedule.values_at(0, 9, "adam", {"lr": 0.5, "warmup": 2}) == {"lr": 1.0, "beta1": 0.45}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "cosin",
            "--schedule cosin: known are cosine, onecycle and MODULE:FUNCTION of step, steps and lr; did you",
        ),
        ("made_up_schedules:three", "--schedule made_up_schedules:three: it is no function"),
        ("made_up_schedules:of_step", "it has no parameter steps; write it as f(step, steps, lr)"),
        ("made_up_schedules:gone", "made_up_schedules has no gone"),
    ],
)
def test_what_is_no_schedule_is_one_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_up_schedules.py").write_text("three = 3\ndef of_step(step): return 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UserError) as raised:
        named_schedule(text)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda step, steps: {"momentum": 0.5}, "adam has no momentum to change: lr, beta1, beta2, eps, weight_decay"),
        (lambda step, steps: {"amsgrad": 1}, "adam has no amsgrad to change"),
        (lambda step, steps: -1.0, "lr=-1.0: must not be negative"),
        (lambda step, steps: "fast", "lr=fast: not a number"),
        (lambda step, steps: None, "--schedule <lambda> gave lr=None: not a number"),
        (lambda step, steps: torch.ones(2), "failed: RuntimeError"),
        (lambda step, steps, other: 1.0, "failed: TypeError"),
    ],
)
def test_what_a_schedule_must_not_give_is_one_line(function: Any, message: str) -> None:
    with pytest.raises(UserError) as raised:
        as_schedule(function).values_at(0, 9, "adam", {})
    assert message in str(raised.value)


def test_no_schedule() -> None:
    assert named_schedule(None) is None
