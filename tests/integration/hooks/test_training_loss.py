"""The losses that a real training computes are in its run, and it computes what it would without us."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.integration.hooks.conftest import Profiling

STEPS = 8


def train(microbatches: int = 1, dtype: torch.dtype = torch.float32) -> tuple[list[float], list[float]]:
    """The losses of the first backward of each step, and the trained parameters."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(STEPS):
        for part in range(microbatches):
            loss = (model(torch.randn(4, 8, dtype=dtype)).square().mean()) / microbatches
            loss.backward()
            if part == 0:
                losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_are_those_of_the_script(profiling: Profiling, microbatches: int, dtype: torch.dtype) -> None:
    without = train(microbatches, dtype)
    with profiling() as profile:
        losses, parameters = train(microbatches, dtype)
    assert (losses, parameters) == without
    assert [(value.update, value.value) for value in profile.records("v")] == list(enumerate(losses))


def test_a_loss_that_is_not_in_the_hosts_memory_is_not_read(profiling: Profiling) -> None:
    with profiling(may_note=True) as profile:
        weight = torch.ones(4, device="meta", requires_grad=True)
        for _ in range(STEPS):
            weight.sum().backward()
            torch.optim.SGD([weight], 0.1).step()
    assert profile.records("v") == []
