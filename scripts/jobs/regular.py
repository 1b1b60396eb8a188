"""Trains a small net in steps of a few milliseconds, whose parts can be made a little longer.

Most of computing is a sleep, as on an accelerator, so that runs beside other processes stay alike; `--burn` does it
with matrix products instead. The time that a batch takes varies, and slow batches come in rows, as from a busy disk.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH = 64
ROWS = 16
BURN_WIDTH = 96
MEMORY = 0.7
"""How much of a batch's slowness the next one inherits."""
VARIATION = 0.2
"""The standard deviation of the time of a batch, relative to its mean."""


class Sleep(torch.autograd.Function):
    """Nothing but time in forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class Net(nn.Module):
    """Two layers with a time that they take."""

    square: torch.Tensor

    def __init__(self, seconds: float, products: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.seconds, self.products = seconds, products
        self.register_buffer("square", torch.eye(BURN_WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(self.products):
            self.square @ self.square
        return Sleep.apply(self.layers(x), self.seconds)  # type: ignore[no-untyped-call]


class Batches(Dataset[torch.Tensor]):
    """Each takes its time, and the next one resembles it."""

    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds, self.state = length, seconds, 0.0
        self.rows = torch.randn(ROWS, WIDTH)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.state = MEMORY * self.state + random.gauss(0, VARIATION * (1 - MEMORY**2) ** 0.5)
        time.sleep(max(0.0, self.seconds * (1 + self.state)))
        return self.rows


def main() -> None:
    """Parses and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=540)
    parser.add_argument("--compute-ms", type=float, default=4, help="slept in each forward")
    parser.add_argument("--burn", type=int, default=0, metavar="N", help="matrix products in each forward")
    parser.add_argument("--data-ms", type=float, default=1.6, help="of each batch")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--other-ms", type=float, default=0.8, help="slept after each update")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = Net(args.compute_ms / 1000, args.burn)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for rows in DataLoader(Batches(args.steps, args.data_ms / 1000), batch_size=None, num_workers=args.workers):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        time.sleep(args.other_ms / 1000)


if __name__ == "__main__":
    main()
