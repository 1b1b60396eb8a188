"""A script that splits layers over the ranks by DTensor, and never calls `zero_grad`: gradients accumulate.

`python tensor_parallel.py OUTPUT`: parameters and gradients of this rank after each variant. The model checks in every
forward that nobody stands between it and its operators.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Shard
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

STEPS = 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not _get_current_dispatch_mode_stack()
        assert not _get_current_function_mode_stack()
        return x + self.down(torch.relu(self.up(self.norm(x))))  # type: ignore[no-any-return]


def tensor_parallel() -> dict[str, Any]:
    return {"up": ColwiseParallel(), "down": RowwiseParallel()}


def sequence_parallel() -> dict[str, Any]:
    """Between the layers each rank has a part of the sequence."""
    return {
        "norm": SequenceParallel(use_local_output=True),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }


VARIANTS = {"tensor": tensor_parallel, "sequence": sequence_parallel}


def train(plan: Any) -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(*(parallelize_module(Block(), mesh, plan()) for _ in range(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        for _ in range(2):
            model(torch.randn(2, 8, 16)).square().mean().backward()
        optimizer.step()
    return model


def local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor)


def main() -> None:
    dist.init_process_group("gloo")
    results = {}
    for name, plan in VARIANTS.items():
        model = train(plan)
        results[name] = [[local(p.detach()), local(p.grad)] for p in model.parameters()]
    torch.save(results, f"{sys.argv[1]}-{dist.get_rank()}.pt")
    dist.barrier()  # a rank that goes while another still waits for a sum aborts it: torch, with and without ddlprof
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
