"""A training that saves now and then, goes on from its checkpoint, and is killed after the steps that it is told.

`python resuming.py FOLDER STEPS KILLS`: KILLS are numbers of steps with commas between them. What rank 0 does is
written to `FOLDER/log`, a line for each step by the script's own clock: the step of the job, and its seconds,
from the end of the step before or of a checkpoint after it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn

SAVE_EVERY = 10
STEP_S = 0.05
WRITTEN_AFTER_S = 1.6
"""After so long, what was recorded of the last step is on disk."""


def main() -> None:
    folder, steps, kills = Path(sys.argv[1]), int(sys.argv[2]), [int(word) for word in sys.argv[3].split(",") if word]
    is_one_of_many = "RANK" in os.environ
    torch.set_num_threads(1)
    model = nn.Linear(64, 64)
    net: nn.Module = model
    if is_one_of_many:
        distributed.init_process_group("gloo")
        net = nn.parallel.DistributedDataParallel(model)
    rank = distributed.get_rank() if is_one_of_many else 0
    optimizer = torch.optim.AdamW(net.parameters())
    checkpoint, first = folder / "latest.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["done"]
    with (folder / f"log{'' if rank == 0 else rank}").open("a") as log:
        begin = time.perf_counter()
        for done in range(first + 1, steps + 1):
            optimizer.zero_grad()
            net(torch.ones(4, 64)).sum().backward()
            time.sleep(STEP_S)
            optimizer.step()
            end = time.perf_counter()
            print(done, end - begin, file=log, flush=True)
            begin = end
            if done % SAVE_EVERY == 0 and rank == 0:
                content = {"net": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
                torch.save(content, folder / "latest.pt.tmp")
                os.replace(folder / "latest.pt.tmp", checkpoint)
                begin = time.perf_counter()
            if done in kills:
                _killed_once(folder, done, rank)


def _killed_once(folder: Path, done: int, rank: int) -> None:
    """Rank 0 kills itself, unless it was killed here before; the others wait for the launcher to stop them."""
    marker = folder / f"killed-{done}"
    if marker.exists():
        return
    time.sleep(WRITTEN_AFTER_S)
    if rank == 0:
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


main()
