"""A script that trains a small net in every way that DDP offers and saves what a difference would show in.

`python variants.py OUTPUT`: parameters, gradients, buffers and random number states of this rank after each variant.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS = 4


class Net(nn.Module):
    def __init__(self, recompute: bool | None = None) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.dropout = nn.Dropout(0.2)
        self.last = nn.Linear(32, 4)
        self.sometimes = nn.Linear(32, 4)
        self.recompute = recompute

    def forward(self, x: torch.Tensor, skip: bool = False) -> Any:
        y = self.first(x) if self.recompute is None else checkpoint(self.first, x, use_reentrant=self.recompute)
        y = self.dropout(y)
        return self.last(y) if skip else self.last(y) + self.sometimes(y)


def make(recompute: bool | None = None, **options: Any) -> Any:
    # A megabyte is more than this net: small buckets make several collectives of a backward.
    return DistributedDataParallel(Net(recompute), bucket_cap_mb=0.002, **options)


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, 16, requires_grad=True) * (1 + dist.get_rank()) + step


def train(model: Any, optimizer: Any, skip: Callable[[int], bool] = lambda step: False, micro_batches: int = 1) -> Any:
    for step in range(STEPS):
        optimizer.zero_grad()
        for index in range(micro_batches):
            last = index == micro_batches - 1
            with contextlib.nullcontext() if last else model.no_sync():
                model(batch(step), skip(step)).square().mean().backward()
        optimizer.step()
    return model


def with_hook(register: Callable[[Any], None]) -> Any:
    model = make()
    register(model)
    return train(model, sgd(model))


def plain() -> Any:
    model = make()
    return train(model, sgd(model))


def static_graph() -> Any:
    model = make(static_graph=True)
    return train(model, sgd(model))


def unused_parameters() -> Any:
    model = make(find_unused_parameters=True)
    return train(model, sgd(model), skip=lambda step: (step + dist.get_rank()) % 2 == 0)


def no_sync() -> Any:
    model = make()
    return train(model, sgd(model), micro_batches=3)


def fp16_hook() -> Any:
    return with_hook(lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook))


def power_sgd() -> Any:
    def register(model: Any) -> None:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return with_hook(register)


def zero() -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns that torch.jit.script is deprecated

    model = make()
    return train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01))


def checkpointing(reentrant: bool) -> Any:
    model = make(reentrant)
    return train(model, sgd(model))


def by_hand() -> Any:
    """Gradients averaged by the script, after the backward."""
    net = Net()
    optimizer = sgd(net)
    for step in range(STEPS):
        optimizer.zero_grad()
        net(batch(step)).square().mean().backward()
        works = [dist.all_reduce(p.grad, async_op=True) for p in net.parameters() if p.grad is not None]
        for work in works:
            work.wait()
        dist.barrier()
        optimizer.step()
    return net


VARIANTS: dict[str, Callable[[], Any]] = {
    "plain": plain,
    "static_graph": static_graph,
    "unused_parameters": unused_parameters,
    "no_sync": no_sync,
    "fp16_hook": fp16_hook,
    "power_sgd": power_sgd,
    "zero": zero,
    "checkpointing": lambda: checkpointing(False),
    "reentrant_checkpointing": lambda: checkpointing(True),
    "by_hand": by_hand,
}


def main() -> None:
    dist.init_process_group("gloo")
    results = {}
    for name, variant in VARIANTS.items():
        torch.manual_seed(0)
        random.seed(0)
        model = variant()
        results[name] = {
            "state": model.state_dict(),
            "gradients": [p.grad for p in model.parameters()],
            "random": [torch.get_rng_state(), random.random()],
        }
    torch.save(results, f"{sys.argv[1]}-{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
