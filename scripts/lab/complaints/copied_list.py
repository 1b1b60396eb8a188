# pytorch/pytorch#13246 referit3d/referit3d#5: workers copy a list of objects by reading it; cure: one array
from __future__ import annotations

import numpy as np
import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES = 200_000


class Names(Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        names = [f"{i:0200d}" for i in range(SAMPLES)]
        self.names = names if FAULT else np.array(names, dtype=np.bytes_)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((64,), float(len(self.names[i]))), i % 10


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    clock.train(model, optimizer, DataLoader(Names(), batch_size=512, shuffle=True, num_workers=2))
    clock.done()
