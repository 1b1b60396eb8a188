# All weights are broadcast after each update, although DDP keeps them equal; cure: without it
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = [layer for _ in range(12) for layer in (nn.Linear(160, 160), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(160, 10)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for _ in range(150):
        x, y = torch.randn(64, 160), torch.randint(0, 10, (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if FAULT:
            for parameter in model.parameters():
                dist.broadcast(parameter.data, 0)
        clock.step()
    clock.done()
    dist.destroy_process_group()
