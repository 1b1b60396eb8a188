# Lightning-AI/pytorch-lightning#12344 yenchenlin/nerf-pytorch#42: anomaly mode is left on; cure: switch it off
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.autograd.set_detect_anomaly(FAULT)
    layers = [layer for _ in range(40) for layer in (nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    loader = DataLoader(TensorDataset(torch.randn(4096, 128), torch.randint(0, 10, (4096,))), batch_size=32)
    clock = OwnClock()
    clock.train(model, optimizer, loader)
    clock.done()
