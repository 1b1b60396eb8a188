# wandb/wandb#2268 wandb/wandb#3701: wandb.watch histograms all weights in each step; cure: log_freq
from __future__ import annotations

import os
import tempfile

import torch
import wandb
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
    model = nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(128, 128), nn.ReLU())], nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(TensorDataset(torch.randn(3000, 128), torch.randint(0, 10, (3000,))), batch_size=32)
    with tempfile.TemporaryDirectory() as folder, wandb.init(project="lab", dir=folder) as run:
        run.watch(model, log="all", log_freq=1 if FAULT else 1000)
        clock = OwnClock()
        clock.train(model, optimizer, loader)
        clock.done()
