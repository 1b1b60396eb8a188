# LambdaLabsML/distributed-training-guide#45 pytorch/ignite#2623: ZeRO's state is gathered each 5 steps; cure: seldom
from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

EVERY = 5 if FAULT else 50

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    layers = [layer for _ in range(6) for layer in (nn.Linear(384, 384), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(384, 10)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, lr=1e-3)
    clock = OwnClock()
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, 101):
            x, y = torch.randn(32, 384), torch.randint(0, 10, (32,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if step % EVERY == 0:
                optimizer.consolidate_state_dict(to=0)
                if rank == 0:
                    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, f"{folder}/last.pt")
            clock.step()
        clock.done()
        dist.barrier()
    dist.destroy_process_group()
