# pytorch/pytorch#94131 ufoym/imbalanced-dataset-sampler#21: as many draws as samples for an epoch; cure: num_samples
from __future__ import annotations

from itertools import islice

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

SAMPLES, BATCHES = 3_000_000, 30

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(SAMPLES, 16), torch.randint(0, 10, (SAMPLES,)))
    sampler = WeightedRandomSampler(torch.ones(SAMPLES), SAMPLES if FAULT else BATCHES * 32)  # type: ignore[arg-type]
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    clock = OwnClock()
    for _ in range(8):
        clock.epoch()
        clock.train(model, optimizer, islice(loader, BATCHES))
    clock.done()
