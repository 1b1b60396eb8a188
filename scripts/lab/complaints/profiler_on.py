# facebookresearch/dlrm#197 pytorch/kineto#126: torch's profiler is on for all steps; cure: a few steps of a schedule
from __future__ import annotations

import contextlib

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.GELU())], nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(TensorDataset(torch.randn(8000, 64), torch.randint(0, 10, (8000,))), batch_size=32)
    clock = OwnClock()
    with torch.autograd.profiler.profile(with_stack=True, profile_memory=True) if FAULT else contextlib.nullcontext():
        clock.train(model, optimizer, loader)
        clock.done()
