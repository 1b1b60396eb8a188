"""A script that trains a small net with DDP, in steps of a few milliseconds, and keeps it to the end."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 8, 4


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    optimizer.zero_grad()
    model(torch.randn(BATCH, 16)).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)  # so that the helper thread keeps up
dist.destroy_process_group()
