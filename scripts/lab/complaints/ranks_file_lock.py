# rwth-i6/returnn#1548 modelscope/ms-swift#8269: all ranks lock a file to read it; cure: no lock, as nobody writes
from __future__ import annotations

import fcntl
import os
import tempfile
import time

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

LOCK = os.path.join(tempfile.gettempdir(), f"lock-{os.environ.get('MASTER_PORT', '0')}")


class Cached(Dataset[tuple[torch.Tensor, int]]):
    """The rows of a file, which is locked while it is read."""

    def __len__(self) -> int:
        return 2560

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with open(LOCK, "w") as file:
            if FAULT:
                fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.001)  # stands for reading
        return torch.full((128,), index / 2560), index % 10


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = Cached()
    sampler: DistributedSampler[Cached] = DistributedSampler(data)
    clock = OwnClock()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        clock.train(model, optimizer, DataLoader(data, batch_size=32, sampler=sampler))
    clock.done()
    dist.destroy_process_group()
