# meetps/pytorch-semseg#199 fastai/fastai#2516: a metric of each class by a loop with .item(); cure: one bincount
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 150


def overlap(found: torch.Tensor, true: torch.Tensor) -> list[float]:
    if FAULT:
        both = [((found == c) & (true == c)).sum().item() for c in range(CLASSES)]
        either = [((found == c) | (true == c)).sum().item() for c in range(CLASSES)]
        return [b / max(e, 1) for b, e in zip(both, either, strict=True)]
    counts = torch.bincount(found * CLASSES + true, minlength=CLASSES**2).reshape(CLASSES, CLASSES)
    same = counts.diagonal()
    return list((same / (counts.sum(0) + counts.sum(1) - same).clamp(min=1)).tolist())


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(TensorDataset(torch.randn(153_600, 64), torch.randint(0, CLASSES, (153_600,))), batch_size=256)
    clock = OwnClock()
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
        overlap(out.detach().argmax(1), y)
        clock.step()
    clock.done()
