# pytorch/pytorch#101370: Adam updates all rows of an embedding though a batch uses few; cure: sparse=True
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROWS = 100_000


class Tags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 64, sparse=not FAULT)
        self.classify = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.classify(self.table(ids).mean(1))
        return out


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = Tags()
    if FAULT:
        optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(model.parameters(), fused=True)]
    else:
        optimizers = [torch.optim.SparseAdam(model.table.parameters()), torch.optim.Adam(model.classify.parameters())]
    data = TensorDataset(torch.randint(0, ROWS, (7_680, 20)), torch.randint(0, 10, (7_680,)))
    clock = OwnClock()
    for ids, y in DataLoader(data, batch_size=64):
        model.zero_grad()
        nn.functional.cross_entropy(model(ids), y).backward()
        for optimizer in optimizers:
            optimizer.step()
        clock.step()
    clock.done()
