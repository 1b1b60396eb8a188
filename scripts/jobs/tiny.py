"""Trains a tiny net for very many very short steps, on one process or under torchrun, and notes its resident set."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

NOTED_EVERY = 500
"""Steps."""


def resident_bytes() -> int:
    """The resident set of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Parses, trains, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", required=True, metavar="FILE", help="JSON file with step numbers and resident sets")
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    distributed = "WORLD_SIZE" in os.environ
    model: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    if distributed:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(args.steps, 8)), batch_size=1)
    noted = []
    for step, (row,) in enumerate(loader):
        optimizer.zero_grad()
        model(row).square().mean().backward()
        optimizer.step()
        if step % NOTED_EVERY == 0:
            noted.append([step, resident_bytes()])
    if distributed:
        dist.destroy_process_group()
    if os.environ.get("RANK", "0") == "0":
        Path(args.truth).write_text(json.dumps({"resident": noted}), encoding="utf-8")


if __name__ == "__main__":
    main()
