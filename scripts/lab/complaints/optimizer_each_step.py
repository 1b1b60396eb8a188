# Wangyixinxin/ACN#9 NaJaeMin92/pytorch-DANN#1: an optimizer is made in each step; cure: once, before the loop
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn


def made(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(60) for layer in (nn.Linear(96, 96), nn.ReLU())], nn.Linear(96, 10))
    optimizer, schedule = made(model)
    x, y = torch.randn(64, 96), torch.randint(0, 10, (64,))
    clock = OwnClock()
    for _ in range(150):
        if FAULT:
            optimizer, schedule = made(model)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
        clock.step()
    clock.done()
