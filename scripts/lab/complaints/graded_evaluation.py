# skorch-dev/skorch#218 OpenNMT/OpenNMT-py#1141: the evaluation computes with gradients; cure: torch.no_grad()
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(512, 512), nn.Tanh(), nn.Dropout(0.1))]
    model = nn.Sequential(nn.Linear(64, 512), *layers, nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    train, held = (TensorDataset(torch.randn(n, 64), torch.randint(0, 10, (n,))) for n in (640, 8192))
    clock = OwnClock()
    for _ in range(4):
        clock.epoch()
        model.train()
        clock.train(model, optimizer, DataLoader(train, batch_size=32))
        model.eval()
        losses = []
        with torch.set_grad_enabled(FAULT):
            for x, y in DataLoader(held, batch_size=32):
                losses.append(nn.functional.cross_entropy(model(x), y))
        sum(losses).item()  # type: ignore[union-attr]
    clock.done()
