"""The pauses of the garbage collector in a real training."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from ddlprof.collect import core
from tests.integration.hooks.conftest import Profiling

COLLECTIONS = 4


@pytest.mark.skipif(not core.IN_C, reason="only the core in C times the collector")
def test_collections_of_the_training_are_recorded_and_the_callback_goes(profiling: Profiling) -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    before = list(gc.callbacks)
    with profiling() as profile:
        during = len(gc.callbacks)
        for _ in range(COLLECTIONS):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            gc.collect()
    assert during == len(before) + 1
    assert gc.callbacks == before
    last = profile.records("O")[-1]
    assert last.full >= COLLECTIONS
    assert last.longest_ns <= last.total_ns
