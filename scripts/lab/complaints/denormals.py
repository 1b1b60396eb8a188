# pytorch/pytorch#23862 chainer/chainer#2554: weights decay into denormal numbers; cure: torch.set_flush_denormal(True)
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    if not FAULT:
        torch.set_flush_denormal(True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 10))
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(1e-14)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    loader = DataLoader(TensorDataset(torch.randn(4096, 128) * 1e-14, torch.randint(0, 10, (4096,))), batch_size=32)
    clock = OwnClock()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        clock.step()
    clock.done()
