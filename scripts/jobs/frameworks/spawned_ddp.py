"""PyTorch's own examples (imagenet, the DDP tutorial): the script starts its ranks by torch.multiprocessing."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from written import write

STEPS, WORLD = 40, 2


def worker(rank: int) -> None:
    """One rank: a net with batch normalisation, whose buffers DDP broadcasts."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(STEPS * WORLD * 16, 3, 16, 16), torch.randint(10, (STEPS * WORLD * 16,)))
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    steps = 0
    for images, labels in DataLoader(data, batch_size=16, sampler=DistributedSampler(data), num_workers=1):
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
        steps += 1
    if rank == 0:
        write(steps, net.state_dict())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = sys.argv[1] if len(sys.argv) > 1 else "29541"
    mp.spawn(worker, nprocs=WORLD)  # type: ignore[attr-defined, no-untyped-call]
