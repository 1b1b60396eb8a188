# open-mmlab/mmdetection#6879: the metric of a validation is computed pair by pair in Python; cure: one argsort
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn

HELD, STEPS, EPOCHS = 300, 300, 6


def mean_precision(features: torch.Tensor, labels: torch.Tensor) -> float:
    alike = features @ features.t()
    if not FAULT:
        hits = (labels[alike.argsort(1, descending=True)] == labels[:, None]).float()
        return float((hits * hits.cumsum(1) / torch.arange(1, HELD + 1)).sum(1).div(hits.sum(1)).mean())
    total = 0.0
    for query in range(HELD):
        found, precision = 0, 0.0
        for rank, i in enumerate(sorted(range(HELD), key=lambda i: -float(alike[query, i]))):
            if labels[i] == labels[query]:
                found += 1
                precision += found / (rank + 1)
        total += precision / found
    return total / HELD


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    held, labels = torch.randn(HELD, 64), torch.randint(0, 10, (HELD,))
    clock = OwnClock()
    for _ in range(EPOCHS):
        clock.epoch()
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(128, 64)).pow(2).mean().backward()
            optimizer.step()
            clock.step()
        model.eval()
        with torch.no_grad():
            mean_precision(model(held), labels)
        model.train()
    clock.done()
