# mir-dataset-loaders/mirdata#653: JSON is parsed for each sample; cure: once, into arrays
from __future__ import annotations

import json

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, NUMBERS = 49_152, 96


class Records(Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.values = torch.randn(SAMPLES, NUMBERS)
        self.texts = [json.dumps({"id": i, "values": row}) for i, row in enumerate(self.values.tolist())]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if not FAULT:
            return self.values[i], i % 10
        record = json.loads(self.texts[i])
        return torch.tensor(record["values"]), i % 10


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(NUMBERS, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    clock.train(model, optimizer, DataLoader(Records(), batch_size=64, shuffle=True))
    clock.done()
