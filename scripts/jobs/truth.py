"""A loop's own clock, and the small net and batches that the loops of `idioms` train with."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, BATCH = 512, 384
PAUSE_S = 0.006

clock = time.perf_counter


class Truth:
    """The loop's own clock: `with truth("compute"):` around what belongs to a class, `truth.step()` after an update.

    `rollout` is a part of `other`.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self._begin: float | None = None
        self._row: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = clock()
        if self._begin is None:
            self._begin = begin
        yield
        self._row[name] = self._row.get(name, 0.0) + clock() - begin

    def step(self) -> None:
        """What nobody claimed is `other`."""
        end = clock()
        assert self._begin is not None
        row = {"step": end - self._begin, **self._row}
        row["other"] = row["step"] - sum(self._row.get(name, 0.0) for name in ("compute", "data"))
        self.rows.append(row)
        self._begin, self._row = end, {}


def net(inputs: int = WIDTH, outputs: int = WIDTH) -> nn.Sequential:
    """Three layers."""
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs)
    )


def batches(steps: int) -> DataLoader[Any]:
    """Random rows."""
    return DataLoader(TensorDataset(torch.randn(steps * BATCH, WIDTH)), batch_size=BATCH)


def awaited(truth: Truth, loader: Any) -> Iterator[Any]:
    """The batches of a loader, whose waits are data."""
    iterator = iter(loader)
    while True:
        with truth("data"):
            try:
                batch = next(iterator)
            except StopIteration:
                return
        yield batch


def burn(seconds: float = PAUSE_S) -> None:
    """Computes outside of torch."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of all parameters."""
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=1e-3, momentum=0.9)
