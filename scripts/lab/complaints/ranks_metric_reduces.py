# sb-ai-lab/RePlay#100 modelscope/ms-swift#9966: each metric is reduced in each step; cure: all of them at once, seldom
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn

METRICS, EVERY = 40, 25


def reduced(values: torch.Tensor, step: int) -> list[float]:
    if not FAULT:
        if step % EVERY:
            return []
        dist.all_reduce(values)
        return list((values / dist.get_world_size()).tolist())
    means = []
    for value in values:
        one = value.clone()
        dist.all_reduce(one)
        means.append(one.item() / dist.get_world_size())
    return means


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, METRICS)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for step in range(150):
        x, y = torch.randn(64, 64), torch.randint(0, METRICS, (64,))
        optimizer.zero_grad()
        out = model(x)
        nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
        reduced(out.detach().softmax(1).mean(0), step)
        clock.step()
    clock.done()
    dist.destroy_process_group()
