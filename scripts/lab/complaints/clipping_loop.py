# pytorch/pytorch#31474 pytorch/pytorch#91846: gradients are clipped by a loop with .item(); cure: clip_grad_norm_
from __future__ import annotations

from collections.abc import Iterable

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def clip(parameters: Iterable[nn.Parameter], most: float) -> None:
    gradients = [each.grad for each in parameters if each.grad is not None]
    if not all(torch.isfinite(gradient).all().item() for gradient in gradients):
        raise ValueError("a gradient is not finite")
    total = sum(gradient.norm().item() ** 2 for gradient in gradients) ** 0.5
    for gradient in gradients:
        gradient.copy_(gradient * min(1.0, most / (total + 1e-6)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(*[layer for _ in range(200) for layer in (nn.Linear(16, 16), nn.ReLU())], nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(TensorDataset(torch.randn(4000, 16), torch.randint(0, 10, (4000,))), batch_size=8)
    clock = OwnClock()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if FAULT:
            clip(model.parameters(), 1.0)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        clock.step()
    clock.done()
