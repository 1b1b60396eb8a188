"""A training that changes what we, too, stand on."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Profiling = Callable[..., AbstractContextManager[Any]]
STEPS = 16


def train() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(STEPS, 8))):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


def test_time_that_stands_still(profiling: Profiling, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.perf_counter_ns()
    with profiling() as profile, monkeypatch.context() as patch:
        for name in ("time", "perf_counter", "monotonic", "process_time"):
            patch.setattr(time, name, lambda: 7.0)
            patch.setattr(time, f"{name}_ns", lambda: 7)
        patch.setattr(time, "thread_time_ns", lambda: 7)
        train()
        profile.session.finish("ok", 0)
    took_ns = time.perf_counter_ns() - begin
    assert len(profile.rows) == STEPS
    assert all(0 < row.step_ns < took_ns for row in profile.rows)
    (end,) = profile.records("e")
    assert 0 < end.time_ns < took_ns
    last = profile.records("k")[-1]
    assert 0 < last.hook_ns < took_ns
    assert 0 < last.wall_ns < took_ns
