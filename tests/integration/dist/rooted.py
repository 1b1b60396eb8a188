"""A script in which rank 1 waits for rank 0 or the other way round, in operations in which they do different work.

`python rooted.py VARIANT`: `broadcast`: rank 1 is the root, and late. `message`: rank 1 sends late what rank 0 has been
waiting for. `buffers`: a model under DDP with batch normalisation, rank 1 is late to its forward, in which rank 0
broadcasts. `all`: every operation once, for what is recorded of it. Each rank writes when it began them, by the clock
of the machine.
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

STEPS, SLEEP_S = 12, 0.05


def every_operation(pair: Any) -> None:
    rank, x, y = dist.get_rank(), torch.ones(10), torch.ones(10)
    both = [x, y] if rank == 0 else None
    dist.broadcast(x, 1, group=pair)
    dist.reduce(x, 1)
    dist.gather(x, both, dst=0)
    dist.scatter(x, both, src=0)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]):
        work.wait()
    if rank == 0:
        dist.send(x, 1, tag=3)
    else:
        dist.recv(x, 0, tag=3)
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x)  # from anybody


def main() -> None:
    variant = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    net: Any = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    model = DistributedDataParallel(net) if variant == "buffers" else net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began = []
    for _ in range(STEPS):
        x = torch.ones(4, 8)
        time.sleep(SLEEP_S * (rank == 1 and variant != "all"))
        began.append(time.monotonic())
        if variant == "all":
            every_operation(pair)
        elif variant == "message":
            (dist.send if rank else dist.recv)(x, 1 - rank)
        elif variant == "broadcast":
            dist.broadcast(x, 1)
        model(x).sum().backward()
        optimizer.step()
    dist.barrier()
    Path(f"began-{rank}.json").write_text(json.dumps(began))


if __name__ == "__main__":
    main()
