"""Trains a small net on samples from slow storage: each read takes some milliseconds, as from an object store.

Part of the case study docs/cases/slow-loader.md. The delay stands in for the store; all else is an ordinary script.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

READ_S = 0.004


class Stored(Dataset[tuple[torch.Tensor, int]]):
    """Samples that are read one by one."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(READ_S)
        return torch.full((256,), index / self.samples), index % 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=0, help="loader worker processes")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for samples, labels in DataLoader(Stored(args.steps * args.batch), args.batch, num_workers=args.workers):
        optimizer.zero_grad()
        F.cross_entropy(model(samples), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
