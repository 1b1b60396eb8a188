"""Trains a small net on input that stalls on purpose, and writes what its own clock says of every step.

`--input` says how a sample is made: not at all, by sleeping, by burning processor time, or by reading files.
Every sample carries what it took to make: wall time, processor time, and for a read the time spent waiting for a
processor (from the kernel) and the bytes that came from the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 8
ROWS = 8
"""Rows of each sample, so that the matrices of a batch of few samples are worth multiplying."""
BLOCK_BYTES = 16 * 1024
MADE = ("made_wall_s", "made_cpu_s", "made_queued_s", "made_disk_bytes")
LOGGING_S = 0.001
EVALUATION_BATCHES = 2

clock = time.perf_counter


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random rows and the figures of their making, `MADE`."""

    def __init__(self, args: argparse.Namespace, length: int) -> None:
        self.kind, self.seconds, self.length = args.input, args.stall_ms / 1000 / BATCH, length
        self.files = sorted(Path(args.files).iterdir()) if args.files else []
        self.reads, self.cold = args.reads, args.cold
        self.rows = torch.randn(ROWS, args.width)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        wall, cpu = clock(), time.thread_time()
        before = kernel_figures() if self.kind == "read" else (0, 0)
        if self.kind == "sleep":
            time.sleep(self.seconds)
        elif self.kind == "burn":
            while time.thread_time() - cpu < self.seconds:
                pass
        elif self.kind == "read":
            for number in range(self.reads):
                self.read(self.files[(index * self.reads + number) % len(self.files)])
        after = kernel_figures() if self.kind == "read" else (0, 0)
        figures = [clock() - wall, time.thread_time() - cpu, after[0] - before[0], after[1] - before[1]]
        return self.rows, torch.tensor(figures, dtype=torch.float64)

    def read(self, path: Path) -> None:
        """Reads a file block by block, as formats with an index are read, and uses it."""
        with path.open("rb", buffering=0) as file:
            if self.cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            while block := file.read(BLOCK_BYTES):
                torch.frombuffer(bytearray(block), dtype=torch.uint8).max()


def kernel_figures() -> tuple[float, int]:
    """Seconds this thread has waited for a processor so far, and bytes this process has had read from the disk."""
    queued_ns = int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1])
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return queued_ns / 1e9, next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def make_model(width: int) -> nn.Module:
    """Four square layers."""
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())))


def train(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a step, by the script's own clock."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make_model(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = Samples(args, args.steps * args.accumulate * BATCH)
    batches = iter(DataLoader(samples, batch_size=BATCH, num_workers=args.workers))
    evaluation = DataLoader(Samples(args, EVALUATION_BATCHES * BATCH), batch_size=BATCH)
    rows: list[dict[str, Any]] = []
    begin = clock()
    for step in range(args.steps):
        evaluated = bool(args.evaluate_every and step and step % args.evaluate_every == 0)
        if evaluated:
            evaluate(model, evaluation)
        row = train_step(model, optimizer, batches, args.accumulate)
        end = row.pop("end")
        row |= {"step_s": end - begin, "evaluated": evaluated}
        row["other_s"] = row["step_s"] - row["data_s"] - row["compute_s"]
        rows.append(row)
        begin = end
        time.sleep(LOGGING_S)
    return rows


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Any], micro_batches: int
) -> dict[str, Any]:
    """Waits for data in `next`; computation is everything else from the first forward to the end of the update, and
    `zero_grad`, which frees memory before it."""
    before = clock()
    optimizer.zero_grad()
    zeroing_s = clock() - before
    data_s = waited_inside = 0.0
    made = torch.zeros(len(MADE), dtype=torch.float64)
    first_forward = None
    for _ in range(micro_batches):
        asked = clock()
        rows, figures = next(batches)
        waited = clock() - asked
        data_s += waited
        made += figures.sum(dim=0)
        if first_forward is None:
            first_forward = clock()
        else:
            waited_inside += waited
        model(rows.flatten(0, 1)).square().mean().backward()
    optimizer.step()
    end = clock()
    assert first_forward is not None
    return {
        "end": end,
        "data_s": data_s,
        "compute_s": zeroing_s + end - first_forward - waited_inside,
        **dict(zip(MADE, made.tolist(), strict=True)),
    }


def evaluate(model: nn.Module, loader: DataLoader[Any]) -> None:
    """A pass without gradients."""
    model.eval()
    with torch.no_grad():
        for rows, _ in loader:
            model(rows.flatten(0, 1))
    model.train()


def main() -> None:
    """Parses, trains, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", required=True, metavar="FILE", help="JSON file with the script's own timing")
    parser.add_argument("--input", choices=("none", "sleep", "burn", "read"), default="none")
    parser.add_argument("--stall-ms", type=float, default=0, help="slept or burnt for each batch")
    parser.add_argument("--files", metavar="DIR", help="files to read")
    parser.add_argument("--reads", type=int, default=1, help="files read for each sample")
    parser.add_argument("--cold", type=int, default=0, help="1: drop each file from the page cache first")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--evaluate-every", type=int, default=0, metavar="STEPS")
    parser.add_argument("--width", type=int, default=640, help="of the layers")
    args = parser.parse_args()
    rows = train(args)
    Path(args.truth).write_text(json.dumps({key: [row[key] for row in rows] for key in rows[0]}), encoding="utf-8")


if __name__ == "__main__":
    main()
