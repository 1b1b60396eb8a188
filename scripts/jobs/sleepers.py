"""Trains on several ranks that sleep instead of computing, and writes what its own clock says of every step.

Ranks that sleep do not contend for the processors, so many of them on one machine behave like accelerators, while
their gradients travel over a real network. One rank may be slower than the others, in computing or in its input.
Every rank writes `rank-N.json` into the folder `--truth`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

clock = time.perf_counter


class Sleep(torch.autograd.Function):
    """Nothing but time, in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.clone()  # FSDP warns of views

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        time.sleep(ctx.backward_s)
        return gradient, None, None


class Layer(nn.Module):
    """A square matrix whose gradient is worth sending, and a time that it takes.

    Its buffer is what batch normalisation has for its running statistics: DDP broadcasts it in every forward.
    """

    def __init__(self, width: int, forward_ms: float, backward_ms: float, buffer_kb: int = 0) -> None:
        super().__init__()
        self.matrix = nn.Linear(width, width, bias=False)
        if buffer_kb:
            self.register_buffer("running", torch.zeros(256 * buffer_kb))
        self.seconds = forward_ms / 1000, backward_ms / 1000

    def forward(self, x: torch.Tensor) -> Any:
        return Sleep.apply(self.matrix(x), *self.seconds)  # type: ignore[no-untyped-call]


class Rows(Dataset[torch.Tensor]):
    """Each takes the time to sleep."""

    def __init__(self, length: int, width: int, sleep_ms: float) -> None:
        self.length, self.seconds = length, sleep_ms / 1000
        self.row = torch.randn(width)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.row


def distribute(model: nn.Module, strategy: str, bucket_mb: float) -> nn.Module:
    """DDP, or FSDP of the second generation with a group of parameters for each layer."""
    if strategy != "fsdp":
        return DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def optimizer_of(model: nn.Module, strategy: str) -> torch.optim.Optimizer:
    """The optimizer of `zero` has a share of the parameters on each rank, which broadcasts them when they are new."""
    if strategy != "zero":
        return torch.optim.SGD(model.parameters(), lr=1e-3)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1e-3)


def train(args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each step, and of its wait for data."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout_s))
    slow = dist.get_rank() == args.slow_rank % dist.get_world_size()
    late_ms = args.slow_compute_ms / args.layers if slow else 0.0
    forward_ms = args.forward_ms + late_ms
    layers = [Layer(args.width, forward_ms, args.backward_ms, args.buffer_kb) for _ in range(args.layers)]
    model = distribute(nn.Sequential(*layers), args.strategy, args.bucket_mb)
    optimizer = optimizer_of(model, args.strategy)
    rows = Rows(args.steps, args.width, args.data_ms + (args.slow_data_ms if slow else 0.0))
    batches = iter(DataLoader(rows, batch_size=1))
    step_s, data_s = [], []
    begin = clock()
    for step in range(args.steps):
        if args.show_steps:
            # One write: torch's launcher runs Python unbuffered, and ranks share the output.
            sys.stdout.write(f"rank {dist.get_rank()} process {os.getpid()} step {step} time {time.time()}\n")
        asked = clock()
        batch = next(batches)
        data_s.append(clock() - asked)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        end = clock()
        step_s.append(end - begin)
        begin = end
    dist.barrier()  # gloo may abort a rank whose peers are gone already
    return {"step_s": step_s, "data_s": data_s}


def main() -> None:
    """Parses, trains, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", metavar="DIR", help="folder for the script's own timing; none: it is not written")
    parser.add_argument("--strategy", choices=("ddp", "fsdp", "zero"), default="ddp")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512, help="of the square layers")
    parser.add_argument("--buffer-kb", type=int, default=0, help="of each layer")
    parser.add_argument("--bucket-mb", type=float, default=2, help="of DDP")
    parser.add_argument("--forward-ms", type=float, default=3, help="of each layer")
    parser.add_argument("--backward-ms", type=float, default=6, help="of each layer")
    parser.add_argument("--data-ms", type=float, default=5, help="of each batch")
    parser.add_argument("--slow-rank", type=int, default=-1, help="negative: counted from the last")
    parser.add_argument("--slow-compute-ms", type=float, default=0, help="more in each forward of the slow rank")
    parser.add_argument("--slow-data-ms", type=float, default=0, help="more for each of its batches")
    parser.add_argument("--timeout-s", type=float, default=60, help="of collectives")
    parser.add_argument("--show-steps", action="store_true", help="print a line when a step begins")
    args = parser.parse_args()
    times = train(args)
    if args.truth:
        rank = dist.get_rank()
        (Path(args.truth) / f"rank-{rank}.json").write_text(json.dumps(times), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
