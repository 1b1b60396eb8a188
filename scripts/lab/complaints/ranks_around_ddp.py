# jingyaogong/minimind#854 OpenTSLM/OpenTSLM#49: the loss goes around DDP, by model.module; cure: the model DDP returned
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for _ in range(2000):
        x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
        optimizer.zero_grad()
        scores = model.module(x) if FAULT else model(x)
        nn.functional.cross_entropy(scores, y).backward()
        optimizer.step()
        clock.step()
    clock.done()
    dist.destroy_process_group()
