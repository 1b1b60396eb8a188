"""A script whose step has collectives of several issuers: DDP's buffers, its reducer, a module, a hook and the loop."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 8


class Norm(nn.Module):
    """Its all-reduce is at the line that ends with "forward"."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(8))

    def forward(self, x: torch.Tensor) -> Any:
        statistics = x.detach().mean(0)
        dist.all_reduce(statistics)  # forward
        return (x - statistics / 2) * self.mask


def main() -> None:
    dist.init_process_group("gloo")
    apart, works = nn.Linear(8, 8), []
    apart.weight.register_post_accumulate_grad_hook(
        lambda p: works.append(dist.all_reduce(p.grad, async_op=True))  # backward
    )
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), Norm()))
    optimizer = torch.optim.SGD([*model.parameters(), *apart.parameters()], lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        apart(model(torch.ones(4, 8))).sum().backward()
        for work in works:
            work.wait()
        works.clear()
        dist.broadcast(torch.ones(3), 0)  # loop
        optimizer.step()
    del model  # else its reducer ends the group under the interpreter's lock, for which threads of gloo may wait
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
