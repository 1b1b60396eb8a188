"""A pipeline whose stages take known times: `python pipeline.py SCHEDULE MICRO_BATCHES STAGES_A_RANK [SLOW_STAGE]`.

Stages sleep instead of computing, so they do not compete for the cores of the machine. A stage takes `FORWARD_S` for
the forward of a micro-batch and twice that for its backward; the slow stage takes `SLOW_FACTOR` times as long. The
schedule is a class of torch.distributed.pipelining, or `by_hand`: a loop with sends and receives.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

FORWARD_S = 0.02
SLOW_FACTOR = 1.5
STEPS = 16
WIDTH = 8


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class Stage(nn.Module):
    """The last stage has a head as well, as in a language model."""

    def __init__(self, seconds: float, is_last: bool) -> None:
        super().__init__()
        self.seconds = seconds
        self.block = nn.Linear(WIDTH, WIDTH)
        if is_last:
            self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Sleep.apply(self.block(x), self.seconds)
        return self.head(x) if hasattr(self, "head") else x


def by_torch(name: str, micro_batches: int, stages: list[Stage], numbers: list[int], total: int) -> Any:
    device = torch.device("cpu")
    parts = [
        pipelining.PipelineStage(stage, number, total, device) for stage, number in zip(stages, numbers, strict=True)
    ]
    kind = getattr(pipelining, name)
    loss = nn.functional.mse_loss
    schedule = kind(parts[0] if len(parts) == 1 and "Interleaved" not in name else parts, micro_batches, loss_fn=loss)

    def step(x: torch.Tensor, target: torch.Tensor) -> None:
        schedule.step(*([x] if 0 in numbers else []), **({"target": target} if total - 1 in numbers else {}))

    return step


def send(tensor: torch.Tensor, to: int) -> dist.Work:
    work = dist.isend(tensor, to)
    assert work is not None
    return work


def by_hand(micro_batches: int, stage: Stage) -> Any:
    """All forwards, then all backwards, as GPipe."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1

    def step(x: torch.Tensor, target: torch.Tensor) -> None:
        kept, sent = [], []
        for part, wanted in zip(x.chunk(micro_batches), target.chunk(micro_batches), strict=True):
            given = part if rank == 0 else torch.empty_like(part)
            if rank > 0:
                dist.recv(given, rank - 1)
            made = stage(given.requires_grad_(rank > 0))
            if rank < last:
                sent.append(send(made.detach(), rank + 1))
            kept.append((given, made if rank < last else nn.functional.mse_loss(made, wanted)))
        for given, made in kept:
            gradient = torch.empty_like(made) if rank < last else None
            if gradient is not None:
                dist.recv(gradient, rank + 1)
            torch.autograd.backward(made, gradient)
            if rank > 0:
                assert given.grad is not None
                sent.append(send(given.grad, rank - 1))
        for work in sent:
            work.wait()

    return step


def main() -> None:
    name, micro_batches, virtual = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    slow = int(sys.argv[4]) if len(sys.argv) > 4 else None
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = virtual * ranks
    numbers = [rank + turn * ranks for turn in range(virtual)]
    stages = [Stage(FORWARD_S * (SLOW_FACTOR if n == slow else 1), n == total - 1) for n in numbers]
    model = nn.ModuleList(stages)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if name == "by_hand":
        step = by_hand(micro_batches, stages[0])
    else:
        step = by_torch(name, micro_batches, stages, numbers, total)
    for _ in range(STEPS):
        x, target = torch.randn(2, 2 * micro_batches, WIDTH)
        step(x, target)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
