"""A small loop for hours, two ranks under DDP, with the garbage collector off, whose disk fails now and then.

Counts its own steps. `--faults` makes writes of ddlprof's files fail with ESTALE for some seconds, and makes some of
them take long, as a network file system does: in this process, where ddlprof writes, and nowhere else.
"""

from __future__ import annotations

import argparse
import errno
import gc
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

_HIGH = 500
"""Numbers of descriptors from here on are ddlprof's, which leaves low ones to the script."""
_MB = 2**20


class Faults:
    """Replaces `os.write`; what it does to ddlprof's files is `now`."""

    def __init__(self, seed: int) -> None:
        self.now = ""
        self.told: list[tuple[float, str]] = []
        self._random = random.Random(seed)
        self._write = os.write
        os.write = self.write
        threading.Thread(target=self._run, daemon=True).start()

    def write(self, file: int, data: Any) -> int:
        if file >= _HIGH and self.now == "stale":
            raise OSError(errno.ESTALE, "Stale file handle")
        if file >= _HIGH and self.now == "slow":
            time.sleep(self._random.uniform(2, 20))
        return self._write(file, data)

    def _run(self) -> None:
        while True:
            time.sleep(self._random.uniform(30, 180))
            self.now = self._random.choice(("stale", "slow"))
            self.told.append((time.time(), self.now))
            time.sleep(self._random.uniform(1, 40))
            self.now = ""


def _resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MB


def main() -> None:
    """Trains for `--seconds` and writes what it counted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--rate", type=float, default=200, help="the most steps a second")
    parser.add_argument("--faults", action="store_true")
    args = parser.parse_args()
    gc.disable()
    gc.freeze()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    faults = Faults(rank) if args.faults else None
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4096, 32)), batch_size=16)
    begin, steps, go_on = time.monotonic(), 0, torch.ones(1)
    resident: list[tuple[float, int, float]] = []
    while go_on.item():
        for (batch,) in loader:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            time.sleep(max(0.0, begin + steps / args.rate - time.monotonic()) if steps % 4 == 0 else 0)
        elapsed = time.monotonic() - begin
        if not resident or elapsed - resident[-1][0] >= 10:
            resident.append((elapsed, steps, _resident_mb()))
        go_on.fill_(elapsed < args.seconds)
        dist.broadcast(go_on, 0)  # rank 0's clock decides
    told = faults.told if faults else []
    args.truth.with_suffix(f".{rank}.json").write_text(
        json.dumps({"steps": steps, "resident": resident, "faults": told}), encoding="utf-8"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
