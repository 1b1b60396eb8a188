"""A script that starts its ranks itself, in one of the ways in which scripts and frameworks do.

`python starting.py WAY [FAILING]`: `spawn`, `fork` and `forkserver` of torch.multiprocessing; `again`: rank 0 starts
the script once more for rank 1, as Lightning does; `mesh`: ranks of a launcher, which only make a device mesh; `srun`:
of a scheduler that sets nothing of torch's. The rank FAILING raises an error half way. Prints the parameters' sum.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, RANKS = 40, 2


def train(rank: int, port: int, failing: int = -1) -> None:
    """One rank; the group is not made where the environment has it all."""
    torch.set_num_threads(1)
    if port:
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model: Any = DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).sum().backward()
        time.sleep(0.002)
        optimizer.step()
        if rank == failing and step == STEPS // 2:
            raise ValueError("diverged")
    say(f"trained {rank} {sum(p.sum().item() for p in model.parameters())}")
    dist.destroy_process_group()


def say(line: str) -> None:
    """In one piece, whatever the other rank says."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def free_port() -> int:
    """Of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Starts the ranks."""
    way, failing = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else -1
    if way == "again":
        port = int(os.environ.setdefault("THE_PORT", str(free_port())))
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        command = [sys.executable, *sys.argv]
        other = None if rank else subprocess.Popen(command, env={**os.environ, "LOCAL_RANK": "1"})
        train(rank, port, failing)
        if other is not None:
            other.wait()
    elif way == "mesh":
        from torch.distributed.device_mesh import init_device_mesh

        init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
        train(int(os.environ["RANK"]), 0)
    elif way == "srun":
        train(int(os.environ["SLURM_PROCID"]), int(os.environ["THE_PORT"]))
    else:
        untyped: Any = mp
        untyped.start_processes(train, args=(free_port(), failing), nprocs=RANKS, start_method=way)


if __name__ == "__main__":
    main()
