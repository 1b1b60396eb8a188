# javiribera/locating-objects-without-bboxes#46 open-mmlab/mmsegmentation#3363: validates one by one; cure: batches
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    layers = [nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU()) for _ in range(6)]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    train = TensorDataset(torch.randn(12_800, 128), torch.randint(0, 10, (12_800,)))
    valid = TensorDataset(torch.randn(2_000, 128), torch.randint(0, 10, (2_000,)))
    clock = OwnClock()
    for _ in range(6):
        clock.epoch()
        model.train()
        clock.train(model, optimizer, DataLoader(train, batch_size=128, shuffle=True))
        model.eval()
        right = 0
        with torch.no_grad():
            for x, y in DataLoader(valid, batch_size=1 if FAULT else 128):
                right += int((model(x).argmax(1) == y).sum())
    clock.done(right=right)
