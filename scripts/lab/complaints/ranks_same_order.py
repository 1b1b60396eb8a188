# pytorch/pytorch#31771 kan-bayashi/ParallelWaveGAN#177: the sampler is never told the epoch; cure: sampler.set_epoch
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(1600, 3, 32, 32), torch.randint(0, 10, (1600,)))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.AvgPool2d(28), nn.Flatten(), nn.Linear(24, 10)
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for epoch in range(4):
        if not FAULT:
            sampler.set_epoch(epoch)
        clock.epoch()
        clock.train(model, optimizer, loader)
    clock.done()
    dist.destroy_process_group()
