# NVIDIA/apex#113 pytorch/pytorch#40400: each step makes a process group anew; cure: once, before the loop
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn


def mean_over_ranks(loss: torch.Tensor, group: dist.ProcessGroup | None) -> float:
    group = group or dist.new_group(list(range(dist.get_world_size())))
    total = loss.detach().clone()
    dist.all_reduce(total, group=group)
    return total.item() / dist.get_world_size()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    once = None if FAULT else dist.new_group()
    clock = OwnClock()
    for _ in range(200):
        x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        mean_over_ranks(loss, once)
        clock.step()
    clock.done()
    dist.destroy_process_group()
