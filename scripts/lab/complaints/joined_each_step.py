# ulissigroup/amptorch#13: torch.cat makes a tensor longer in every step; cure: one tensor of all rows, filled by slices
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH, WIDTH = 300, 64, 256


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(STEPS * BATCH, 64), torch.randint(0, 10, (STEPS * BATCH,)))
    clock = OwnClock()
    kept = torch.zeros(0 if FAULT else STEPS * BATCH, WIDTH)
    for step, (x, y) in enumerate(DataLoader(data, batch_size=BATCH)):
        optimizer.zero_grad()
        features = model[1](model[0](x))
        nn.functional.cross_entropy(model[2](features), y).backward()
        optimizer.step()
        if FAULT:
            kept = torch.cat([kept, features.detach()])
        else:
            kept[step * BATCH : (step + 1) * BATCH] = features.detach()
        clock.step()
    clock.done()
