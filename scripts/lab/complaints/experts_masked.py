# facebookresearch/fairo#442: each expert computes all tokens, of which a mask keeps few; cure: only those routed to it
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EXPERTS = 16


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(64, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(EXPERTS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            if FAULT:
                out = out + expert(x) * (chosen == n).unsqueeze(-1)
            else:
                rows = (chosen == n).nonzero()[:, 0]
                out = out.index_add(0, rows, expert(x[rows]))
        return out * weight.unsqueeze(-1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 64), Mixture(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(30_720, 64), torch.randint(0, 10, (30_720,)))
    clock = OwnClock()
    for _ in range(2):
        clock.epoch()
        clock.train(model, optimizer, DataLoader(data, batch_size=512))
    clock.done()
