"""Four ranks that communicate along five dimensions of a layout by hand, and time each call by their own clock.

Groups are described as Megatron describes them. One rank of each tensor group comes late by `--late-s`, and half of the
ranks come late to their experts by twice as much. Rank 0 writes the seconds of every call: for each rank, a list of a
number for each step, by the dimension.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

PAIRS = {
    "tensor": ("TENSOR_MODEL_PARALLEL_GROUP", ((0, 1), (2, 3))),
    "data": ("DATA_PARALLEL_GROUP_WITH_CP", ((0, 2), (1, 3))),
    "expert": ("EXPERT_MODEL_PARALLEL_GROUP", ((0, 3), (1, 2))),
    "context": ("CONTEXT_PARALLEL_GROUP", ((0, 2), (1, 3))),
}
"""For each dimension the description of its groups, and their ranks."""
ELEMENTS = {"tensor": 400_000, "data": 1_000_000, "expert": 200_000, "context": 100_000, "": 8}
"""The sizes of the collectives; the last one is among all ranks, which are no dimension."""


def main() -> None:
    """Trains, and writes what the ranks' own clocks say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--late-s", type=float, default=0.02)
    asked = parser.parse_args()
    dist.init_process_group("gloo")
    seconds = train(asked.steps, asked.late_s)
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, seconds)
    if dist.get_rank() == 0:
        asked.truth.write_text(json.dumps(of_ranks), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def own_groups() -> dict[str, tuple[Any, int]]:
    """This rank's group of each dimension, and the other rank in it."""
    rank, own = dist.get_rank(), {}
    for dimension, (description, pairs) in PAIRS.items():
        for pair in pairs:
            group = dist.new_group(list(pair), group_desc=description)
            if rank in pair:
                own[dimension] = group, next(each for each in pair if each != rank)
    return own


def train(steps: int, late_s: float) -> dict[str, list[float]]:
    """Trains a small model; returns what the calls of each dimension took in each step."""
    rank, own = dist.get_rank(), own_groups()
    seconds: dict[str, list[float]] = {dimension: [] for dimension in ELEMENTS}
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def timed(dimension: str, work: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        begin = time.perf_counter()
        work(torch.ones(ELEMENTS[dimension]), *args, **kwargs)
        seconds[dimension].append(time.perf_counter() - begin)

    for _ in range(steps):
        y = net(torch.randn(64, 256))
        if rank % 2:
            time.sleep(late_s)
        timed("tensor", dist.all_reduce, group=own["tensor"][0])
        if rank > 1:
            time.sleep(2 * late_s)
        timed("expert", dist.all_to_all_single, torch.ones(ELEMENTS["expert"]), group=own["expert"][0])
        timed("context", exchange, *own["context"])
        y.square().mean().backward()
        timed("data", dist.all_reduce, group=own["data"][0])
        timed("", dist.all_reduce)
        optimizer.step()
        optimizer.zero_grad()
    return seconds


def exchange(x: torch.Tensor, group: Any, other: int) -> None:
    """Sends to the other rank and receives from it, the lower rank first."""
    for way in (dist.send, dist.recv) if dist.get_rank() < other else (dist.recv, dist.send):
        way(x, other, group=group)


if __name__ == "__main__":
    main()
