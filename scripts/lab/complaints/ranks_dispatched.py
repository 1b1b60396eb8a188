# huggingface/accelerate#2162: rank 0 reads the batches of all and sends each its part; cure: each reads its own
from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

BATCH, STEPS, SIZE = 16, 60, 64


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    """Every so-many-th image of a stream."""

    def __init__(self, first: int, step: int) -> None:
        self._first, self._step = first, step

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        for number in range(self._first, 10**9, self._step):
            time.sleep(0.0015)  # stands for reading and decoding
            yield torch.full((3, SIZE, SIZE), float(number % 10)), number % 10


def dispatched(loader: DataLoader[Any]) -> Iterator[list[torch.Tensor]]:
    """The parts of this rank of the batches that rank 0 reads, as accelerate's DataLoaderDispatcher has it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    batches = iter(loader) if rank == 0 else None
    while True:
        batch: list[torch.Tensor] = next(batches) if batches is not None else []
        shapes: list[Any] = [[each.shape for each in batch]]
        dist.broadcast_object_list(shapes, 0)
        if batches is None:
            batch = [torch.empty(shapes[0][0]), torch.empty(shapes[0][1], dtype=torch.int64)]
        for each in batch:
            dist.broadcast(each, 0)
        yield [each.chunk(world)[rank] for each in batch]


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, 10))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    own: DataLoader[Any] = DataLoader(Stream(rank, world), BATCH)
    source = dispatched(DataLoader(Stream(0, 1), BATCH * world)) if FAULT else iter(own)
    clock = OwnClock()
    clock.train(model, optimizer, (batch for batch, _ in zip(source, range(STEPS), strict=False)))
    clock.done()
    dist.destroy_process_group()
