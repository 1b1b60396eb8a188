# LBANN/lbann#56 chainer/chainer#2554: Adam's moments of weights without gradients become subnormal; cure: flush them
from __future__ import annotations

import timeit

import torch
from own_clock import FAULT, OwnClock
from torch import nn

WORDS, OFTEN = 8_192, 256


def takes(size: float) -> float:
    numbers = torch.full((2**16,), size)
    return min(timeit.repeat(lambda: numbers * 1e-10, number=20, repeat=10))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if not FAULT:
        torch.set_flush_denormal(True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WORDS, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    clock = OwnClock()
    for step in range(1_500):
        words = torch.zeros(32, WORDS)
        words.scatter_(1, torch.randint(WORDS if step < 20 else OFTEN, (32, 20)), 1.0)
        topics = torch.randint(4, (32,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words), topics).backward()
        optimizer.step()
        clock.step()
    clock.done(absent=FAULT and takes(1e-30) < 2 * takes(1.0))  # this processor is as fast with subnormal numbers
