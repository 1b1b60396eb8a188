"""What is seen of DDP's switches: a search for unused parameters, and buffers that it broadcasts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddlprof.collect.facts.ddp_switches import DdpSwitches

UPDATES = 16


class Net(nn.Module):
    """`skips`: leaves out a layer in every so many forwards. `counts`: changes a buffer in each."""

    calls: torch.Tensor

    def __init__(self, skips: int, counts: bool, normalises: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4) if normalises else nn.Identity()
        self.register_buffer("calls", torch.zeros(1))
        self.skips, self.counts, self.number = skips, counts, 0

    def forward(self, x: torch.Tensor) -> Any:
        self.number += 1
        if self.counts:
            self.calls += 1
        x = self.norm(self.first(x))
        return x if self.skips and self.number % self.skips == 0 else self.second(x)


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    store: Any = torch._C._distributed_c10d.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def seen(
    skips: int = 0, counts: bool = False, normalises: bool = False, searches: bool = False, sends: bool = True
) -> DdpSwitches:
    model = DistributedDataParallel(Net(skips, counts, normalises), find_unused_parameters=searches)
    switches, model.broadcast_buffers = DdpSwitches(), sends
    for update in range(1, UPDATES + 1):
        model.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        if update < 4 or update in (4, 8, 16):
            switches.look(torch, [nn.Linear(1, 1), model], update)
    return switches


def test_a_search_that_finds_none() -> None:
    found = seen(searches=True)
    assert (found.finds_unused, found.unused, found.iterations) == (True, False, 4)


@pytest.mark.parametrize("skips", [1, 2, 3])
def test_a_search_that_finds_some(skips: int) -> None:
    assert seen(skips, searches=True).unused


def test_no_search() -> None:
    found = seen()
    assert (found.finds_unused, found.unused, found.iterations) == (False, None, 0)


@pytest.mark.parametrize(("counts", "normalises"), [(False, False), (True, False), (False, True), (True, True)])
def test_buffers_that_change(counts: bool, normalises: bool) -> None:
    found = seen(counts=counts, normalises=normalises)
    assert (found.buffers_change, found.statistics) == (counts, normalises)


def test_buffers_that_are_not_sent() -> None:
    assert seen(counts=True, sends=False).buffers_change is None


def test_nothing_is_asked_inside_a_backward() -> None:
    """DDP's log waits for a lock that a backward may hold."""
    switches, model = DdpSwitches(), DistributedDataParallel(Net(0, False, False), find_unused_parameters=True)
    result = model(torch.ones(3, 4)).sum()
    result.register_hook(lambda gradient: switches.look(torch, [model], 2))
    result.backward()
    assert switches.finds_unused is None
