# google-research/tuning_playbook#38: a step accumulates gradients sample by sample; cure: one pass over all of them
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 32


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(200 * BATCH, 64), torch.randint(0, 10, (200 * BATCH,)))
    clock = OwnClock()
    for x, y in DataLoader(data, batch_size=BATCH):
        optimizer.zero_grad()
        for part in range(BATCH if FAULT else 1):
            some = slice(part, part + 1) if FAULT else slice(None)
            loss = nn.functional.cross_entropy(model(x[some]), y[some])
            (loss / (BATCH if FAULT else 1)).backward()
        optimizer.step()
        clock.step()
    clock.done()
