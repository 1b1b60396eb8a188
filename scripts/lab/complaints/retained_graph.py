# GBLin5566/toward-controlled-generation-of-text-pytorch#9 pytorch/pytorch#40005: retain_graph=True; cure: without it
from __future__ import annotations

import resource

import torch
from own_clock import FAULT, OwnClock
from torch import nn

if __name__ == "__main__":
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(128, 128), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = torch.randn(8192, 128), torch.randint(0, 10, (8192,))
    clock = OwnClock()
    for _ in range(40):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward(retain_graph=FAULT)
        optimizer.step()
        clock.step()
    clock.done(peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
