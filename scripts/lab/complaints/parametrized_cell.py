# lezcano/geotorch#34 pytorch/pytorch#7313: a weight is computed at each time step; cure: parametrize.cached()
from __future__ import annotations

import contextlib

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.nn.utils import parametrizations, parametrize


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(32, 128), nn.Linear(128, 10)
        self.hidden = parametrizations.orthogonal(nn.Linear(128, 128, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], 128)
        for t in range(x.shape[1]):
            h = torch.tanh(self.inner(x[:, t]) + self.hidden(h))
        out: torch.Tensor = self.head(h)
        return out


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for _ in range(60):
        x, y = torch.randn(32, 20, 32), torch.randint(0, 10, (32,))
        optimizer.zero_grad()
        with contextlib.nullcontext() if FAULT else parametrize.cached():
            out = model(x)
        nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
        clock.step()
    clock.done()
