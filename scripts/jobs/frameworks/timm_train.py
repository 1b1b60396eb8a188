"""A model, an optimizer and a schedule of timm's, in a loop like that of its train.py."""

from __future__ import annotations

import timm
import timm.optim
import timm.scheduler
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from written import write

STEPS = 40


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = timm.create_model("resnet10t", num_classes=10)
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    schedule, _ = timm.scheduler.create_scheduler_v2(optimizer, num_epochs=1, updates_per_epoch=STEPS)
    data = TensorDataset(torch.randn(STEPS * 8, 3, 32, 32), torch.randint(10, (STEPS * 8,)))
    criterion = nn.CrossEntropyLoss()
    updates = 0
    model.train()
    for images, labels in DataLoader(data, batch_size=8):
        loss = criterion(model(images), labels)
        loss.backward()
        timm.utils.dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
        schedule.step_update(num_updates=updates, metric=loss.item())
    write(updates, model.state_dict())


if __name__ == "__main__":
    main()
