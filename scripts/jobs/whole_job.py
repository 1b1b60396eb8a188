"""A whole job whose parts take known times, mostly asleep; rank 0 writes what each took by its own clock.

Under torchrun it trains with DDP, and only rank 0 evaluates and saves while the others wait at a barrier.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS = 40
START_UP_S, FIRST_BATCH_S, STEP_S, IDLE_S, END_S = 1.5, 0.4, 0.02, 0.25, 1.0
EVALUATED_BATCHES, EVALUATED_BATCH_S, EVALUATE_EVERY = 5, 0.1, 40
SAVE_S, SAVE_EVERY = 0.2, 30

spent: dict[str, float] = dict.fromkeys(("start_up", "epoch_start", "evaluation", "checkpoint", "idle", "end"), 0.0)


def age_s() -> float:
    """The time since the kernel made this process."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def counted(part: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    spent[part] += time.perf_counter() - begin


class Slow(Dataset[torch.Tensor]):
    """Its first sample takes long."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 0:
            with counted("epoch_start"):
                time.sleep(FIRST_BATCH_S)
        return torch.ones(16)


class State:
    """Takes as long to be written as it takes to be pickled."""

    def __reduce__(self) -> Any:
        time.sleep(SAVE_S)
        return (int, ())


def save() -> None:
    with counted("checkpoint"):
        torch.save({"state": State()}, io.BytesIO())


def evaluate(net: torch.nn.Module) -> None:
    net.eval()
    with counted("evaluation"), torch.no_grad():
        for (batch,) in DataLoader(TensorDataset(torch.ones(EVALUATED_BATCHES, 16))):
            net(batch)
            time.sleep(EVALUATED_BATCH_S)
    net.train()
    with counted("idle"):
        time.sleep(IDLE_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    truth, epochs = arguments.truth, arguments.epochs
    rank = int(os.environ.get("RANK", "0"))
    net: torch.nn.Module = torch.nn.Linear(16, 16)
    plain = net
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(Slow())
    time.sleep(START_UP_S)
    spent["start_up"] = age_s()
    done = 0
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = net(batch).sum()
            time.sleep(STEP_S)
            loss.backward()
            optimizer.step()
            done += 1
            if rank == 0 and done % SAVE_EVERY == 0:
                save()
            if rank == 0 and done % EVALUATE_EVERY == 0 and done < epochs * STEPS:
                evaluate(plain)
            if dist.is_initialized():
                dist.barrier()
    if rank == 0:
        evaluate(plain)
        save()
    with counted("end"):
        time.sleep(END_S)
    if dist.is_initialized():
        dist.destroy_process_group()
    spent["end"] += IDLE_S  # what followed the last evaluation is behind the last step
    spent["idle"] -= IDLE_S
    if rank == 0:
        truth.write_text(json.dumps({**spent, "steps": age_s() - sum(spent.values()), "wall": age_s()}))


if __name__ == "__main__":
    main()
