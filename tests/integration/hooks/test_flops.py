"""The operations of a training are counted without anything between the script and its operators."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ddlprof.collect.steps import loop
from ddlprof.model.records import Flag
from tests.integration.hooks.conftest import Profile, Profiling

FORWARD = 2 * (4 * 8 + 8 * 2)
BACKWARD = 2 * FORWARD - 2 * 4 * 8


class Watchful(nn.Module):
    """Notes in every forward and backward what stands between it and its operators."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.forwards = 0
        self.modes: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        self.note()
        y: Tensor = self.body(x)
        y.register_hook(lambda gradient: self.note())
        return y

    def note(self) -> None:
        self.modes += [*_get_current_dispatch_mode_stack(), *_get_current_function_mode_stack()]


def train(model: nn.Module, steps: int = 6, micro_batches: int = 1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()


def operations(profile: Profile) -> tuple[float | None, float | None]:
    model = json.loads((profile.directory / "manifest.json").read_text())["model"]
    return model["forward_flops_per_sample"], model["backward_flops_per_sample"]


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_counted_and_left_alone(micro_batches: int, profiling: Profiling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SMALLEST_GAP_NS", loop.HUGE_GAP_NS)  # a busy machine makes gaps, whose steps are marked
    torch.manual_seed(1)
    plain = Watchful()
    train(plain, micro_batches=micro_batches)
    random_numbers = torch.get_rng_state()
    torch.manual_seed(1)
    with profiling() as profile:
        model = Watchful()
        train(model, micro_batches=micro_batches)
    assert torch.equal(torch.get_rng_state(), random_numbers)
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    assert model.forwards == plain.forwards
    assert model.modes == []
    assert operations(profile) == (FORWARD, BACKWARD)
    assert [bool(row.flags & Flag.TRACED) for row in profile.rows] == [False, True, False, False, False, False]


def test_what_cannot_be_counted_is_empty(profiling: Profiling) -> None:
    class Tuned(nn.Module):
        """A frozen body under a head: the body's operations are in no graph."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 64).requires_grad_(False), nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))  # type: ignore[no-any-return]

    with profiling() as profile:
        train(Tuned())
    assert operations(profile) == (None, None)
