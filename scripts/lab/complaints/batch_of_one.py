# milesial/Pytorch-UNet#127 lyeoni/nlp-tutorial#3: each update is of one sample; cure: larger batches
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())], nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(3000, 64), torch.randint(0, 10, (3000,)))
    clock = OwnClock()
    clock.train(model, optimizer, DataLoader(data, batch_size=1 if FAULT else 32))
    clock.done()
