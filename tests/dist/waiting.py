"""A script whose ranks wait for each other by amounts that are known.

`python waiting.py VARIANT`: `slow_rank`: rank 1 sleeps in every forward. `slow_backward`: all ranks sleep in the
backward of the first layer, after a reentrant checkpoint has made the first bucket ready. `by_hand`: rank 1 sleeps,
rank 0 waits in an all_reduce of the script's.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS, SLEEP_S = 12, 0.05


class Sleep(torch.autograd.Function):
    """Nothing but time, in forward or backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        time.sleep(ctx.backward_s)
        return gradient, None, None


class Net(nn.Module):
    def __init__(self, variant: str) -> None:
        super().__init__()
        self.variant = variant
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> Any:
        slow = dist.get_rank() == 1 and self.variant != "slow_backward"
        late = SLEEP_S if self.variant == "slow_backward" else 0
        y = Sleep.apply(self.first(x), SLEEP_S if slow else 0, late)
        return checkpoint(self.last, y, use_reentrant=True) if self.variant == "slow_backward" else self.last(y)


def main() -> None:
    variant = sys.argv[1]
    dist.init_process_group("gloo")
    net = Net(variant)
    model: Any = net if variant == "by_hand" else DistributedDataParallel(net, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 64)).sum()
        if variant == "by_hand":
            dist.all_reduce(loss.detach())
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
