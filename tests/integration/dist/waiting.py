"""A script whose ranks wait for each other by amounts that it knows; each writes its own account of them.

`python waiting.py VARIANT`: `slow_rank`: rank 1 sleeps in every forward. `slow_backward`: all ranks sleep in the
backward of the first layer, after a reentrant checkpoint has made the first bucket ready. `by_hand`: rank 1 sleeps,
rank 0 waits in an all_reduce of the script's. `after_backward`: hooks reduce the gradients; rank 1 has issued its own
earlier than rank 0, sees that they are over, sleeps, and only then waits for them.
`over`: a collective is over when the script waits for it, another one, that rank 1 issues late, is under way.
The account, `RANK.json`, has a number for each step: by the clock of the machine, when the rank was ready to
communicate, or, of `over`, the seconds in the two waits.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
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
        slow_s = {"slow_backward": (0, 0), "after_backward": (SLEEP_S / 2, 0), "over": (0, 0)}.get(
            self.variant, (0, SLEEP_S)
        )
        late = SLEEP_S if self.variant == "slow_backward" else 0
        y = Sleep.apply(self.first(x), slow_s[dist.get_rank()], late)
        return checkpoint(self.last, y, use_reentrant=True) if self.variant == "slow_backward" else self.last(y)


def wait_for_what_is_over() -> list[float]:
    over = dist.all_reduce(torch.ones(8), async_op=True)
    await_end(over)
    if dist.get_rank() == 1:
        time.sleep(SLEEP_S)
    under_way = dist.all_reduce(torch.ones(8), async_op=True)
    waits = []
    for work in (over, under_way):
        assert work is not None
        begin = time.perf_counter()
        work.wait()
        waits.append(time.perf_counter() - begin)
    return waits


def await_end(work: Any) -> None:
    """Without waiting for it in torch's sense."""
    while not work.is_completed():
        time.sleep(0.001)


def main() -> None:
    variant = sys.argv[1]
    dist.init_process_group("gloo")
    net = Net(variant)
    model: Any = (
        net if variant in ("by_hand", "after_backward", "over") else DistributedDataParallel(net, bucket_cap_mb=0.01)
    )
    works: list[Any] = []
    if variant == "after_backward":
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: works.append(dist.all_reduce(p.grad, async_op=True)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    account: list[Any] = []
    for _ in range(STEPS):
        if variant == "after_backward":
            dist.barrier()  # without it the half sleep between the ranks would drift
        optimizer.zero_grad()
        loss = model(torch.randn(4, 64)).sum()
        if variant == "over":
            account.append(wait_for_what_is_over())
        else:
            account.append(time.monotonic())
        if variant == "by_hand":
            dist.all_reduce(loss.detach())
        loss.backward()
        for work in works if dist.get_rank() else ():
            await_end(work)
        if works:
            time.sleep(SLEEP_S)
        while works:
            works.pop().wait()
        optimizer.step()
    Path(f"{dist.get_rank()}.json").write_text(json.dumps(account))


if __name__ == "__main__":
    main()
