"""Trains a small net with DistributedDataParallel while torch.profiler records some steps, one trace a rank.

What happens besides training is chosen: the loader sleeps for each batch, the loop sleeps after each update, and the
last rank sleeps before its backward, for which the others then wait. Each rank writes its trace to FOLDER, and rank 0
what its own clock says of every step.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

BATCH = 64
clock = time.perf_counter


def pause(seconds: float) -> None:
    """Sleeps, if at all: to sleep for no time gives the processor away, on a busy machine for long."""
    if seconds:
        time.sleep(seconds)


class Slow(Dataset[torch.Tensor]):
    """Rows that take their time."""

    def __init__(self, seconds: float, width: int, length: int) -> None:
        self.seconds, self.row, self.length = seconds, torch.randn(width), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        pause(self.seconds)
        return self.row


def train(args: argparse.Namespace) -> list[dict[str, float]]:
    """One row a step, by the script's own clock."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layers = [layer for _ in range(4) for layer in (nn.Linear(args.width, args.width), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = Slow(args.load_ms / 1000 / BATCH, args.width, (args.steps + 1) * BATCH)
    batches = iter(DataLoader(samples, batch_size=BATCH))
    rows: list[dict[str, float]] = []
    plan = schedule(wait=args.first - 1, warmup=1, active=args.recorded, repeat=1)

    def write(profiler: profile) -> None:
        profiler.export_chrome_trace(str(Path(args.trace) / f"rank{rank}.json.gz"))

    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=write, record_shapes=True
    ) as profiler:
        for _ in range(args.steps):
            begin = clock()
            batch = next(batches)
            loaded = clock()
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            slept = clock()
            if rank == ranks - 1:
                pause(args.late_ms / 1000)
            late = clock()
            loss.backward()
            optimizer.step()
            updated = clock()
            pause(args.pause_ms / 1000)
            end = clock()
            rows.append({"step_s": end - begin, "data_s": loaded - begin, "slept_s": late - slept + end - updated})
            profiler.step()
    dist.destroy_process_group()
    return rows


def main() -> None:
    """Parses, trains, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", required=True, metavar="FILE", help="JSON file with rank 0's own timing")
    parser.add_argument("--trace", required=True, metavar="FOLDER", help="where the traces go")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--first", type=int, default=20, help="the first step that is recorded")
    parser.add_argument("--recorded", type=int, default=30, metavar="STEPS")
    parser.add_argument("--load-ms", type=float, default=0, help="slept for each batch")
    parser.add_argument("--pause-ms", type=float, default=0, help="slept after each update")
    parser.add_argument("--late-ms", type=float, default=0, help="slept by the last rank before its backward")
    parser.add_argument("--width", type=int, default=512, help="of the layers")
    args = parser.parse_args()
    rows = train(args)
    if os.environ.get("RANK", "0") == "0":
        Path(args.truth).write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
