"""torch's own FSDP on the simulated device: which of its waits are seen, by the device's own log.

The other rank is made up: collectives take their time on the device and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from scripts.lab import simulated_cuda
from scripts.lab.simulated_cuda import Machine
from tests.unit.collect.hooks.streaming import MS, NS, Training, compute, median_ms


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated_cuda.simulated() as machine:

        def launch(name: str, device: int, *how: object) -> int:
            return machine.launch(name, 8 * MS, machine.current(device))  # as NCCL does what is synchronous

        machine.launch_collective = launch  # type: ignore[assignment, method-assign]
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        try:
            yield machine
        finally:
            dist.destroy_process_group()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        compute(3)
        y: Tensor = self.linear(x)
        y.register_hook(lambda gradient: compute(4))
        return y


def blocks() -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(3)), nn.Linear(4, 2)).to("cuda")


def sharded_by_2() -> Any:
    model, mesh = blocks(), init_device_mesh("cuda", (2,))
    for block in model.children():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def sharded_by_1() -> Any:
    def wraps(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return recurse or isinstance(module, Block)

    device = torch.device("cuda", 0)
    return FullyShardedDataParallel(blocks(), device_id=device, use_orig_params=True, auto_wrap_policy=wraps)


@pytest.mark.parametrize("make", [sharded_by_1, sharded_by_2])
def test_its_waits_are_communication(make: Any, machine: Machine, tmp_path: Path) -> None:
    training = Training(machine, tmp_path)
    try:
        rows = training.run(make())
    finally:
        training.session.uninstall()
    blocked = training.blocked_ms()
    assert blocked > 8
    assert median_ms(rows, "comm") == pytest.approx(blocked, abs=NS)
