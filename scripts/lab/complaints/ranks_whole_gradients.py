# pytorch/pytorch#120879 ecmwf/WeatherGenerator#1068: each step makes each gradient whole for its norm; cure: seldom
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

EVERY = 1 if FAULT else 25


def norm(gradient: torch.Tensor | None) -> float:
    assert isinstance(gradient, DTensor)
    return float(gradient.full_tensor().norm())


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    blocks = [nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(6)]
    model = nn.Sequential(*blocks)
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for step in range(60):
        x = torch.randn(64, 128)
        nn.functional.mse_loss(model(x), x).backward()
        if step % EVERY == 0:
            norms = {name: norm(parameter.grad) for name, parameter in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        clock.step()
    clock.done()
    dist.destroy_process_group()
