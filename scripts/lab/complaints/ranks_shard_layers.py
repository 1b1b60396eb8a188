# facebookresearch/fairscale#971 pytorch/pytorch#73809: each small layer is sharded by itself; cure: larger units
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def block() -> nn.Sequential:
    return nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(64, 64), nn.ReLU())])


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    blocks = [block(), block()]
    model = nn.Sequential(*blocks, nn.Linear(64, 10))
    for unit in [layer for each in blocks for layer in list(each)[::2]] if FAULT else blocks:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    clock.train(model, optimizer, ([torch.randn(32, 64), torch.randint(0, 10, (32,))] for _ in range(60)))
    clock.done()
    dist.destroy_process_group()
