# ValerianRey/fed_iot_guard#11: each fold of a cross-validation reads the whole table anew; cure: once, before the folds
from __future__ import annotations

import csv
import tempfile
from datetime import datetime
from pathlib import Path

import torch
from own_clock import FAULT, OwnClock
from torch import nn

ROWS, COLUMNS, FOLDS = 40_000, 12, 5
WHEN = "%d/%m/%Y %H:%M"


def write(path: Path) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        for n in range(ROWS):
            when = datetime(2020, 1 + n % 12, 1 + n % 28, n % 24, n % 60)
            rows.writerow([when.strftime(WHEN), *((n * (7 + k)) % 1000 / 1000 for k in range(COLUMNS))])


def read(path: Path) -> torch.Tensor:
    found = []
    with path.open(newline="") as file:
        for when, *values in csv.reader(file):
            found.append([datetime.strptime(when, WHEN).hour / 24, *map(float, values)])
    return torch.tensor(found)


def train(rows: torch.Tensor, clock: OwnClock) -> None:
    model = nn.Sequential(nn.Linear(COLUMNS, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    clock.epoch()
    for part in rows[torch.randperm(len(rows))].split(512):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(part[:, 1:])[:, 0], part[:, 0]).backward()
        optimizer.step()
        clock.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traffic.csv"
        write(path)
        clock = OwnClock()
        once = None if FAULT else read(path)
        for fold in range(FOLDS):
            table = read(path) if once is None else once
            train(table[torch.arange(ROWS) % FOLDS != fold], clock)
        clock.done()
