# braindecode/braindecode#89 pytorch/pytorch#5902: pandas looks up the row of each sample; cure: an array
from __future__ import annotations

import pandas as pd
import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.frame = pd.DataFrame(torch.randn(32_768, 32).numpy())
        self.values = torch.from_numpy(self.frame.to_numpy().copy())

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if FAULT:
            row = self.frame.iloc[i]
            return torch.tensor([float(row[k]) for k in self.frame.columns]), i % 10
        return self.values[i], i % 10


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    clock.train(model, optimizer, DataLoader(Table(), batch_size=32, shuffle=True))
    clock.done()
