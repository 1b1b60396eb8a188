# karpathy/nanoGPT#356: rank 0 evaluates while the others wait; cure: each rank its part, and one all-reduce
from __future__ import annotations

import time

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    held = TensorDataset(torch.randn(2560, 64), torch.randint(0, 10, (2560,)))
    sampler: DistributedSampler[TensorDataset] | None = None if FAULT else DistributedSampler(held, shuffle=False)
    clock = OwnClock()
    for step in range(120):
        x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % 20 == 19:
            right = torch.zeros(1)
            net.eval()
            with torch.no_grad():
                for x, y in DataLoader(held, batch_size=32, sampler=sampler) if rank == 0 or not FAULT else ():
                    time.sleep(0.01)  # stands for a larger network on a device of its own
                    right += (net(x).argmax(1) == y).sum()
            net.train()
            dist.all_reduce(right)
        clock.step()
    clock.done()
    dist.destroy_process_group()
