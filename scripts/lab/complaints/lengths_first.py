# huggingface/transformers#10909: a sampler makes every sample to learn its length; cure: lengths are stored
from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

SAMPLES, STEPS = 30_000, 100


class Texts(Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.lengths = [10 + 37 * i % 290 for i in range(SAMPLES)]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> torch.Tensor:
        words = [f"word{n % 50}" for n in range(self.lengths[i])]
        numbers = [sum(map(ord, word)) % 1000 for word in words for _ in range(5)]
        return torch.tensor((numbers + 32 * [0])[:32])


class ByLength(Sampler):  # type: ignore[type-arg]
    def __init__(self, data: Texts) -> None:
        lengths = data.lengths
        if FAULT:
            lengths = [int(data[i].count_nonzero()) + data.lengths[i] for i in range(len(data))]
        self.order = sorted(range(SAMPLES), key=lambda i: lengths[i])

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)


if __name__ == "__main__":
    torch.set_num_threads(1)
    clock = OwnClock()
    data = Texts()
    loader = DataLoader(data, batch_size=32, sampler=ByLength(data))
    model = nn.Sequential(nn.Embedding(1000, 32), nn.Linear(32, 1000))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in islice(loader, STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
        clock.step()
    clock.done()
