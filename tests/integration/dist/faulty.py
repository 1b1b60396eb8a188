"""A script whose ranks have one fault: `python faulty.py FAULT`.

`none`. `late`: rank 1 sleeps in every forward. `uneven`: a rank gets more samples than the other, by turns, and takes
as much longer. `lengths`: the same with longer samples in place of more of them. `buckets`: a bucket for nearly each of
many parameters. `synchronised`: gradients are exchanged after each micro-batch.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, COMPUTE_S, BATCH = 60, 0.02, 8


class Net(nn.Module):
    """Layers that cost nothing beside the sleep that stands for a device."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.seconds, self.width = COMPUTE_S, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def main() -> None:
    fault = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sends = fault in ("buckets", "synchronised")
    net = Net(*{"buckets": (40, 64), "synchronised": (4, 512)}.get(fault, (2, 64)))
    model = DistributedDataParallel(net, bucket_cap_mb=0.02 if fault == "buckets" else 25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    net.seconds = 0.002 if sends else COMPUTE_S * (3 if fault == "none" else 1)
    for step in range(2 * STEPS if fault == "lengths" else STEPS):  # lengths are noted in some steps only
        batch = BATCH
        if fault == "uneven" and (step * 7 // 3) % 2 == rank:
            batch = 2 * BATCH
        length = 1
        if fault == "lengths":
            length = 4 + (7 * step + 5 * rank) % 9
            net.seconds = COMPUTE_S * length / 8
        if fault in ("uneven", "late"):
            net.seconds = COMPUTE_S * (1 + (batch > BATCH) + (fault == "late" and rank == 1))
        shape = (batch, length) if fault == "lengths" else (batch,)
        optimizer.zero_grad()
        for _ in range(4 if fault == "synchronised" else 1):
            model(torch.randn(*shape, net.width)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
