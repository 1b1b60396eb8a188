"""A plain step makes few calls of ours: what hooks cost, told by no clock."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddlprof.collect import core
from ddlprof.collect.hooks import modules
from scripts.bench.calls import Calls
from scripts.lab.virtual_clock import VirtualClock
from tests.integration.hooks.conftest import Profiling

WARM_UP, STEPS, STEP_S = 64, 64, 0.02
MOST_PYTHON, MOST_C = (20, 35) if core.IN_C else (60, 75)


def test_a_plain_step_makes_few_calls(
    profiling: Profiling, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "used_dynamo", lambda: False)  # by another test
    called = nn.Module.__call__
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(DataLoader(TensorDataset(torch.zeros(2 * (WARM_UP + STEPS), 4)), batch_size=2))

    def train(steps: int) -> None:
        for _ in range(steps):
            (x,) = next(batches)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            clock.sleep(STEP_S)

    calls = Calls()
    with profiling() as profile:
        train(WARM_UP)
        assert nn.Module.__call__ is called, "the search for models has not ended"
        with calls.counting():
            train(STEPS)
    assert len(profile.rows) == WARM_UP + STEPS
    assert sum(calls.python.values()) / STEPS <= MOST_PYTHON, calls.python.most_common()
    assert sum(calls.in_c.values()) / STEPS <= MOST_C, calls.in_c.most_common()
