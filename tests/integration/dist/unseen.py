"""A script that gives its collectives to the backend itself, past torch's dispatcher, in the last of its steps."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

SEEN, UNSEEN = 6, 6


def main() -> None:
    dist.init_process_group("gloo")
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(SEEN + UNSEEN):
        net(torch.ones(4, 8)).sum().backward()
        assert net.weight.grad is not None
        if step < SEEN:
            dist.all_reduce(net.weight.grad)
        else:
            backend.allreduce([net.weight.grad]).wait()
        optimizer.step()
    dist.barrier()


if __name__ == "__main__":
    main()
