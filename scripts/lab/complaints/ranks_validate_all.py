# pytorch/examples#739 pytorch/examples#461: each rank validates the whole set; cure: its part, and one all-reduce
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
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    train, held = (TensorDataset(torch.randn(n, 64), torch.randint(0, 10, (n,))) for n in (1280, 2560))
    loader = DataLoader(train, batch_size=32, sampler=DistributedSampler(train))
    validation = DataLoader(held, batch_size=32, sampler=None if FAULT else DistributedSampler(held, shuffle=False))
    clock = OwnClock()
    for _ in range(6):
        clock.epoch()
        model.train()
        clock.train(model, optimizer, loader)
        model.eval()
        right = torch.zeros(1)
        with torch.no_grad():
            for x, y in validation:
                time.sleep(0.01)  # stands for a larger network on a device of its own
                right += (net(x).argmax(1) == y).sum()
        if not FAULT:
            dist.all_reduce(right)
    clock.done()
    dist.destroy_process_group()
