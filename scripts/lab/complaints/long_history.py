# dsanno/chainer-neural-style#1: LBFGS goes through its history of 100 in each of its iterations; cure: history_size=10
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, history_size=100 if FAULT else 10)
    clock = OwnClock()
    for x, y in DataLoader(TensorDataset(torch.randn(6400, 64), torch.randint(0, 10, (6400,))), batch_size=64):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        clock.step()
    clock.done()
