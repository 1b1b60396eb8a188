"""Trainings whose ranks share the work along several dimensions: `python layouts.py VARIANT`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

STEPS, WIDTH = 6, 16
TRAINED: list[nn.Module] = []
"""Alive until the end, as the models of most scripts are: some facts are read of a model only as long as it is."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x)))
        return x + y


def train(
    model: nn.Module, steps: int = STEPS, after_backward: Callable[[nn.Module], None] = lambda model: None
) -> None:
    TRAINED.append(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        model(torch.randn(4, 8, WIDTH)).square().mean().backward()
        after_backward(model)
        optimizer.step()
        optimizer.zero_grad()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def split(net: nn.Module, mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in net.children():
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return net


def shard(net: nn.Module, mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in net.children():
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def sum_over_all(net: nn.Module) -> None:
    """As a script does for the loss that it prints."""
    dist.all_reduce(torch.ones(1))


def fsdp_tp() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
    train(shard(split(model(), mesh["tp"]), mesh["dp_shard"]), after_backward=sum_over_all)


def unnamed_fsdp_tp() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    train(shard(split(model(), mesh["b"]), mesh["a"]), after_backward=sum_over_all)


def hsdp() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    train(shard(model(), mesh), after_backward=sum_over_all)


def ddp_with_experts() -> None:
    """The mesh of experts is the whole job, so its group is the one that DDP has."""
    experts = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ep",))

    class Experts(Block):
        def forward(self, x: Tensor) -> Tensor:
            from torch.distributed._functional_collectives import all_to_all_single_autograd

            received: Tensor = all_to_all_single_autograd(x.reshape(-1, WIDTH), None, None, experts.get_group())
            return super().forward(received.reshape(x.shape))

    train(nn.parallel.DistributedDataParallel(nn.Sequential(Block(), Experts())))


def pipeline() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(Block(), rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, target: (out - target).square().mean())
    TRAINED.append(stage.submod)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.01)
    batch = torch.randn(4, 8, WIDTH)
    for _ in range(STEPS):
        schedule.step(*([batch] if rank == 0 else []), target=batch if rank == world - 1 else None)
        optimizer.step()
        optimizer.zero_grad()


class Ring(torch.autograd.Function):
    """Passes a tensor on to the next rank of a group, and its gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return passed(x, group, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return passed(gradient, ctx.group, -1), None


def passed(x: Tensor, group: Any, by: int) -> Tensor:
    ranks = dist.get_process_group_ranks(group)
    place, received = group.rank(), torch.empty_like(x)
    ways = [
        dist.P2POp(dist.isend, x.contiguous(), ranks[(place + by) % len(ranks)], group),
        dist.P2POp(dist.irecv, received, ranks[(place - by) % len(ranks)], group),
    ]
    for work in dist.batch_isend_irecv(ways):
        work.wait()
    return received


def context() -> None:
    """A ring of ranks that have parts of one sequence; the model is sharded over all ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "cp"))
    ring = mesh["cp"].get_group()

    class Attention(Block):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + Ring.apply(x, ring))

    train(shard(nn.Sequential(Block(), Attention()), mesh["dp_shard", "cp"]._flatten("dp_shard_cp")))


VARIANTS = (fsdp_tp, unnamed_fsdp_tp, hsdp, ddp_with_experts, pipeline, context)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    {each.__name__: each for each in VARIANTS}[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()
