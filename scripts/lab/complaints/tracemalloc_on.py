# huggingface/peft#1126: tracemalloc traces every allocation of Python; cure: switch it off
from __future__ import annotations

import tracemalloc

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(32, 32), nn.ReLU())], nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    loader = DataLoader(TensorDataset(torch.randn(8000, 32), torch.randint(0, 10, (8000,))), batch_size=32)
    clock = OwnClock()
    if FAULT:
        tracemalloc.start(10)
    clock.train(model, optimizer, loader)
    clock.done()
