# NVIDIA/Model-Optimizer#1111 pytorch/pytorch#134390: objects are gathered in each step; cure: tensors, seldom
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for step in range(120):
        x, y = torch.randn(512, 64), torch.randint(0, 10, (512,))
        optimizer.zero_grad()
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        if FAULT:
            said = [{"id": i, "scores": row.tolist()} for i, row in enumerate(out.detach())]
            everybody: list[object] = [None] * dist.get_world_size()
            dist.all_gather_object(everybody, said)
        elif step % 25 == 0:
            dist.all_gather([torch.empty_like(out) for _ in range(dist.get_world_size())], out.detach())
        clock.step()
    clock.done()
    dist.destroy_process_group()
