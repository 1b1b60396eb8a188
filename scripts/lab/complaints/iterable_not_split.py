# huggingface/datasets#3423: each worker yields the whole of an iterable data set; cure: its part by get_worker_info()
from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SAMPLES, EPOCHS = 640, 4


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        worker = get_worker_info()
        share = range(SAMPLES) if FAULT or worker is None else range(worker.id, SAMPLES, worker.num_workers)
        for i in share:
            time.sleep(0.0005)
            yield torch.full((256,), float(i % 7)), i % 10


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(Stream(), batch_size=16, num_workers=2, persistent_workers=True)
    clock = OwnClock()
    for _ in range(EPOCHS):
        clock.epoch()
        clock.train(model, optimizer, loader)
    clock.done(steps=SAMPLES // 16 * EPOCHS)  # those that an epoch needs
