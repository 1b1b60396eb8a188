# alexrich021/3dvnet#11: eval() is taken for freezing; backward goes through the backbone; cure: requires_grad_(False)
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    backbone = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU())]).eval()
    if not FAULT:
        backbone.requires_grad_(False)
    head = nn.Linear(512, 10)
    model = nn.Sequential(backbone, head)
    optimizer = torch.optim.SGD(head.parameters(), 0.01)
    loader = DataLoader(TensorDataset(torch.randn(3840, 512), torch.randint(0, 10, (3840,))), batch_size=32)
    clock = OwnClock()
    clock.train(model, optimizer, loader)
    clock.done()
