# ContinualAI/avalanche#560 szymonmaszke/torchdatasets#25: data sets are added one by one; cure: one list of them
from __future__ import annotations

import functools
import operator

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset

FILES, EACH = 400, 40


def recording() -> Dataset:  # type: ignore[type-arg]
    return TensorDataset(torch.randn(EACH, 64), torch.randint(0, 5, (EACH,)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    files = [recording() for _ in range(FILES)]
    data = functools.reduce(operator.add, files) if FAULT else ConcatDataset(files)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 5))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    clock = OwnClock()
    clock.train(model, optimizer, DataLoader(data, batch_size=32, shuffle=True))
    clock.done()
