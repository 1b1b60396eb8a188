# meta-pytorch/torchtune#2402 huggingface/accelerate#4015: FSDP gathers again in backward; cure: it keeps what it has
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    blocks = [nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(8)]
    model = nn.Sequential(*blocks)
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=FAULT)
    fully_shard(model, mesh=mesh, reshard_after_forward=FAULT)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for _ in range(40):
        x = torch.randn(16, 256)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
        clock.step()
    clock.done()
    dist.destroy_process_group()
