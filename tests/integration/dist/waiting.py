"""A script whose ranks wait for each other by amounts that are known.

`python waiting.py VARIANT`: `slow_rank`: rank 1 sleeps in every forward. `slow_backward`: all ranks sleep in the
backward of the first layer, after a reentrant checkpoint has made the first bucket ready. `by_hand`: rank 1 sleeps,
rank 0 waits in an all_reduce of the script's. `after_backward`: hooks reduce the gradients and the script waits for
that long after the backward; rank 1 has issued its own half a sleep earlier than rank 0.
`over`: a collective is over when the script waits for it, another one, that rank 1 issues late, is under way.
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
        slow_s = {"slow_backward": (0, 0), "after_backward": (SLEEP_S / 2, 0), "over": (0, 0)}.get(self.variant, (0, SLEEP_S))
        late = SLEEP_S if self.variant == "slow_backward" else 0
        y = Sleep.apply(self.first(x), slow_s[dist.get_rank()], late)
        return checkpoint(self.last, y, use_reentrant=True) if self.variant == "slow_backward" else self.last(y)


def wait_for_what_is_over() -> None:
    over = dist.all_reduce(torch.ones(8), async_op=True)
    time.sleep(SLEEP_S / 2)
    if dist.get_rank() == 1:
        time.sleep(SLEEP_S)
    under_way = dist.all_reduce(torch.ones(8), async_op=True)
    for work in (over, under_way):
        assert work is not None
        work.wait()


def main() -> None:
    variant = sys.argv[1]
    dist.init_process_group("gloo")
    net = Net(variant)
    model: Any = net if variant in ("by_hand", "after_backward", "over") else DistributedDataParallel(net, bucket_cap_mb=0.01)
    works: list[Any] = []
    if variant == "after_backward":
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
            )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        if variant == "after_backward":
            dist.barrier()  # both ranks take equally long: without it the half sleep between them would drift
        optimizer.zero_grad()
        loss = model(torch.randn(4, 64)).sum()
        if variant == "over":
            wait_for_what_is_over()
        if variant == "by_hand":
            dist.all_reduce(loss.detach())
        loss.backward()
        if works:
            time.sleep(SLEEP_S / (1 + (dist.get_rank() == 0)))
            while works:
                works.pop().wait()
        optimizer.step()


if __name__ == "__main__":
    main()
