"""Three trainings that run on any number of ranks with any batch, each rank on a core of its own.

With `--sleep`, computing is mostly a sleep that grows with the batch, as on an accelerator, so that a busy machine does
not change it; the net behind it is real and small, and so is its all-reduce. Writes the samples per second of all ranks
by its own clock, first steps left out.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from regular import Sleep
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

FIRST_STEPS = 5
CLASSES = 10
SLEEPS_S = {"mlp": (0.02, 0.002), "cnn": (0.03, 0.004), "lstm": (0.06, 0.001)}
"""For each step, and for each sample of a rank."""


class Sleeper(nn.Module):
    """A small net that takes its time."""

    def __init__(self, name: str) -> None:
        super().__init__()
        width = {"mlp": 512, "cnn": 64, "lstm": 256}[name]
        self.first_s, self.sample_s = SLEEPS_S[name]
        self.net = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, CLASSES))

    def forward(self, x: torch.Tensor) -> Any:
        return Sleep.apply(self.net(x), self.first_s + self.sample_s * len(x))  # type: ignore[no-untyped-call]


class LastOfLstm(nn.Module):
    """The class of a sequence, from the last output."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(32, 128, batch_first=True), nn.Linear(128, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
        return output


def job(name: str, sleeps: bool) -> tuple[nn.Module, tuple[int, ...]]:
    """A model and the shape of one sample."""
    if sleeps:
        return Sleeper(name), (32,)
    if name == "mlp":
        return nn.Sequential(*[nn.Linear(512, 512), nn.ReLU()] * 4, nn.Linear(512, CLASSES)), (512,)
    if name == "lstm":
        return LastOfLstm(), (20, 32)
    convolutions = [nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 32, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.LazyLinear(CLASSES)), (3, 24, 24)


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["mlp", "cnn", "lstm"])
    parser.add_argument("--batch", type=int, required=True, help="samples of a step over all ranks")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--core", type=int, default=0, help="the core of the first rank")
    parser.add_argument("--sleep", action="store_true", help="computing is mostly a sleep")
    parser.add_argument("--truth", type=Path)
    options = parser.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    os.sched_setaffinity(0, {options.core + rank})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, shape = job(options.model, options.sleep)
    share = options.batch // world
    inputs = torch.randn(share * 16, *shape)
    model(inputs[:1])
    if world > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(inputs, torch.randint(CLASSES, (len(inputs),))), batch_size=share)
    done, began = 0, time.perf_counter()
    while done < options.steps:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            done += 1
            if done == FIRST_STEPS:
                began = time.perf_counter()
    rate = (done - FIRST_STEPS) * options.batch / (time.perf_counter() - began)
    if rank == 0 and options.truth:
        options.truth.write_text(json.dumps({"samples_per_s": rate}), encoding="utf-8")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
