# pytorch/pytorch#5309: DDP exchanges all rows of an embedding's gradient though a batch has few; cure: sparse=True
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn

ROWS = 100_000

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = (nn.Embedding(ROWS, 32, sparse=not FAULT), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    clock = OwnClock()
    clock.train(model, optimizer, ([torch.randint(0, ROWS, (64, 16)), torch.randint(0, 10, (64,))] for _ in range(120)))
    clock.done()
    dist.destroy_process_group()
