# innnky/so-vits-svc#70 SalesforceAIResearch/DiffusionDPO#15: all ranks train on the same samples; cure: a sampler
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(25_600, 64), torch.randint(0, 10, (25_600,)))
    sampler: DistributedSampler[int] | None = None if FAULT else DistributedSampler(data)
    clock = OwnClock()
    for epoch in range(3):
        clock.epoch()
        if sampler is not None:
            sampler.set_epoch(epoch)
        clock.train(model, optimizer, DataLoader(data, batch_size=256, sampler=sampler, shuffle=sampler is None))
    clock.done(steps=3 * len(data) // 256 // dist.get_world_size())  # those that an epoch needs
    dist.destroy_process_group()
