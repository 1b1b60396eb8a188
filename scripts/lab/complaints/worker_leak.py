# ultralytics/yolov3#642 woven-by-toyota/l5kit#144: each worker keeps every sample that it has read; cure: only the last
from __future__ import annotations

import functools
import time

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, SECONDS = 500_000, 18


class Images(Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.read = functools.lru_cache(maxsize=None if FAULT else 256)(self.decode)

    def decode(self, i: int) -> torch.Tensor:
        return torch.full((3, 32, 32), float(i % 256))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.read(i), i % 10


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AvgPool2d(30), nn.Flatten(), nn.Linear(8, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock, end = OwnClock(), time.perf_counter() + SECONDS
    loader = DataLoader(Images(), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    for x, y in loader:
        clock.train(model, optimizer, [[x, y]])
        if time.perf_counter() > end:
            break
    clock.done()
