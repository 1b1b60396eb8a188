# Project-MONAI/tutorials#1933: the ranks wait at a barrier in each micro-batch; cure: none, as collectives wait
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn

PARTS = 8


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for _ in range(150):
        optimizer.zero_grad()
        for part in range(PARTS):
            x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
            model.require_backward_grad_sync = part == PARTS - 1
            (nn.functional.cross_entropy(model(x), y) / PARTS).backward()
            if FAULT:
                dist.barrier()
        optimizer.step()
        clock.step()
    clock.done()
    dist.destroy_process_group()
