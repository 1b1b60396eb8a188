# AllenInstitute/ophys_etl_pipelines#459: a whole file is read for one row of it; cure: mmap_mode="r"
from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS = 16_384


class Movie(Dataset):  # type: ignore[type-arg]
    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 600

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        frames = np.load(self.path, mmap_mode=None if FAULT else "r")
        return torch.from_numpy(frames[i * 7 % ROWS].copy()), i % 10


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "movie.npy")
        np.save(path, np.zeros((ROWS, 256), dtype=np.float32))
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        clock = OwnClock()
        clock.train(model, optimizer, DataLoader(Movie(path), batch_size=8))
        clock.done()
