# pytorch/pytorch#12831 nmichlo/disent#49: next(iter(loader)) in every step starts the workers anew; cure: one iterator
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 60

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(20_000, 64), torch.randint(0, 10, (20_000,)))
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2)
    clock, iterator = OwnClock(), iter(loader)
    for _ in range(STEPS):
        clock.train(model, optimizer, [next(iter(loader)) if FAULT else next(iterator)])
    clock.done()
