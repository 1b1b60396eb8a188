# pytorch/pytorch#69591: ZeroRedundancyOptimizer sends each parameter by itself; cure: parameters_as_bucket_view=True
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = [layer for _ in range(60) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(64, 10)))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, lr=1e-3, parameters_as_bucket_view=not FAULT
    )
    clock = OwnClock()
    clock.train(model, optimizer, ([torch.randn(32, 64), torch.randint(0, 10, (32,))] for _ in range(120)))
    clock.done()
    dist.destroy_process_group()
