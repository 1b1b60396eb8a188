# deep-learning-with-pytorch/dlwpt-code#91: the squares of all weights are added to the loss; cure: weight_decay
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, weight_decay=0.0 if FAULT else 0.002)
    data = TensorDataset(torch.randn(3200, 256), torch.randint(0, 10, (3200,)))
    clock = OwnClock()
    for _ in range(2):
        clock.epoch()
        for x, y in DataLoader(data, batch_size=16):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            if FAULT:
                loss = loss + 0.001 * sum(p.pow(2.0).sum() for p in model.parameters())
            loss.backward()
            optimizer.step()
            clock.step()
    clock.done()
