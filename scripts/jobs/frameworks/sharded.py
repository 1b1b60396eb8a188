"""Strategies of torch's own over a device mesh; `sharded.py fsdp2|tensor|zero|pipeline` with two ranks."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from written import write

STEPS, BATCH, WIDTH = 40, 16, 256


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, WIDTH))


def fsdp2() -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size() if dist.is_initialized() else 2,))
    model = net()
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    return model, torch.optim.Adam(model.parameters())


def tensor() -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    model = parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def zero() -> tuple[nn.Module, torch.optim.Optimizer]:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(net())
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)


def state_of(model: nn.Module) -> dict[str, Any]:
    return {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in model.state_dict().items()}


def train(strategy: str) -> None:
    model, optimizer = {"fsdp2": fsdp2, "tensor": tensor, "zero": zero}[strategy]()
    torch.manual_seed(0 if strategy == "tensor" else dist.get_rank())
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH)
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
        if strategy != "tensor":  # there gradients add up
            optimizer.zero_grad()
    state = state_of(model)
    if dist.get_rank() == 0:
        write(STEPS, state)


def pipeline() -> None:
    """Two stages, four micro-batches."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layer = nn.Linear(WIDTH, WIDTH)
    stage = PipelineStage(layer, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    x = torch.randn(BATCH, WIDTH)
    for _ in range(STEPS):
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=x)
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        write(STEPS, layer.state_dict())


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if sys.argv[1] == "pipeline":
        pipeline()
    else:
        train(sys.argv[1])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
