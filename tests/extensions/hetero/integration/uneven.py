"""Trains a small net on this rank's share of a plan: `python uneven.py PLAN FOLDER [ACCUMULATED]`; every number is
compared with what one process gets (test_uneven.py)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddlprof.extensions.hetero import apply

EPOCHS, SAMPLES = 2, 37


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.randint(0, 3, (SAMPLES,), generator=generator))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def train(model: Any, loader: DataLoader, sampler: DistributedSampler, accumulated: int) -> None:  # type: ignore[type-arg]
    """The loop of a script that knows nothing of plans."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            updates = (number + 1) % accumulated == 0 or number + 1 == len(loader)
            with contextlib.nullcontext() if updates or not hasattr(model, "no_sync") else model.no_sync():
                nn.functional.cross_entropy(model(x), y).backward()
            if updates:
                optimizer.step()
                optimizer.zero_grad()


def main(plan: str, folder: str, accumulated: int) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    sampler: DistributedSampler[int] = DistributedSampler(data(), world, rank, shuffle=True, seed=5)
    model = DistributedDataParallel(net(), bucket_cap_mb=0.001)
    loader = apply(plan, model, DataLoader(data(), batch_size=4, sampler=sampler))
    train(model, loader, sampler, accumulated)
    parameters = [p.flatten().tolist() for p in model.parameters()]
    Path(folder, f"{rank}.json").write_text(json.dumps(parameters))
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads outlive their group, and one that drops a tensor as the interpreter ends aborts torch


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1)
