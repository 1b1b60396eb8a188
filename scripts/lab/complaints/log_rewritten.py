# Lightning-AI/pytorch-lightning#18567: each step writes all rows of the log anew; cure: it appends one
from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Log:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, float]] = []

    def log(self, **values: float) -> None:
        self.rows.append(values)
        new = FAULT or len(self.rows) == 1
        with self.path.open("w" if new else "a", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(values))
            if new:
                writer.writeheader()
            writer.writerows(self.rows if FAULT else self.rows[-1:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(TensorDataset(torch.randn(80_000, 64), torch.randint(0, 10, (80_000,))), batch_size=64)
    clock = OwnClock()
    with tempfile.TemporaryDirectory() as name:
        log = Log(Path(name) / "metrics.csv")
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            loss.backward()
            optimizer.step()
            right = (out.argmax(1) == y).float().mean()
            log.log(step=step, loss=loss.item(), right=right.item(), rate=0.01)
            clock.step()
    clock.done()
