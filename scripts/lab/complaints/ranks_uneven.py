# pytorch/pytorch#38174 pytorch/pytorch#47250: one rank has a third of the other's batches (join); cure: as many on each
from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, BATCHES = 3, 32, 120


class Sleep(torch.autograd.Function):
    """Stands for a larger network on a device of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.006)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(0.006)
        return gradient


class Sleeper(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        done: torch.Tensor = Sleep.apply(x)  # type: ignore[no-untyped-call]
        return done


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), Sleeper(), nn.Linear(512, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = (BATCHES * 3 // 4 if rank == 0 else BATCHES // 4) if FAULT else BATCHES // 2
    data = TensorDataset(torch.randn(BATCH * batches, 128), torch.randint(0, 10, (BATCH * batches,)))
    clock = OwnClock()
    for _ in range(EPOCHS):
        clock.epoch()
        with model.join():
            clock.train(model, optimizer, DataLoader(data, batch_size=BATCH, shuffle=True))
    clock.done(steps=EPOCHS * BATCHES // 2)
    dist.destroy_process_group()
