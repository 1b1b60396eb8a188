"""Trains a small net on samples read from files, with a computation that leaves the processor alone.

Runs on its own or, with one rank a process, under torchrun. Samples can take longer to make, on all ranks or on one.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH = 8
EPOCHS = 100


class Samples(Dataset[torch.Tensor]):
    """Each of several files, read whole."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        files = sorted(Path(args.files).iterdir())
        self.files = [files[i : i + args.files_each] for i in range(0, len(files), args.files_each)]
        late = args.late_rank is None or args.late_rank == rank
        self.seconds = args.stall_ms / 1000 / BATCH if late else 0.0

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return torch.tensor([float(path.read_bytes()[0]) for path in self.files[index]]).mean().expand(64)


def main() -> None:
    """Parses and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", required=True, metavar="DIR")
    parser.add_argument("--files-each", type=int, default=1, help="files of a sample")
    parser.add_argument("--compute-ms", type=float, default=20)
    parser.add_argument("--stall-ms", type=float, default=0, help="slept for each batch")
    parser.add_argument("--late-rank", type=int, help="the only rank that sleeps [all]")
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: nn.Module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    distributed = "WORLD_SIZE" in os.environ
    if distributed:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    samples = Samples(args, dist.get_rank() if distributed else 0)
    sampler: DistributedSampler[torch.Tensor] | None = DistributedSampler(samples) if distributed else None
    loader = DataLoader(
        samples, BATCH, shuffle=sampler is None, sampler=sampler, num_workers=args.workers, drop_last=True
    )
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            time.sleep(args.compute_ms / 1000)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
