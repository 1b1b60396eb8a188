# sanjaykariyappa/MAZE#2 mosaicml/composer#1240: each loss has a backward of its own; cure: one of their sum
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn

TASKS = 6

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trunk = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(384, 384), nn.ReLU())])
    heads = nn.ModuleList(nn.Linear(384, 10) for _ in range(TASKS))
    optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], 0.01)
    x, y = torch.randn(256, 384), torch.randint(0, 10, (TASKS, 256))
    clock = OwnClock()
    for _ in range(150):
        optimizer.zero_grad()
        features = trunk(x)
        losses = [nn.functional.cross_entropy(head(features), target) for head, target in zip(heads, y, strict=True)]
        if FAULT:
            for loss in losses:
                loss.backward(retain_graph=True)
        else:
            torch.stack(losses).sum().backward()
        optimizer.step()
        clock.step()
    clock.done()
