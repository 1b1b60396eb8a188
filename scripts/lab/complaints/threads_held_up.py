# pytorch/pytorch#3021: as many threads as cores beside other work, which holds one up; cure: as many as it leaves
from __future__ import annotations

import os
import signal
import subprocess
import sys

import torch
from own_clock import FAULT, OwnClock
from torch import nn

if __name__ == "__main__":
    cores = os.cpu_count() or 1
    torch.set_num_threads(cores if FAULT else 1)
    torch.manual_seed(0)
    compute = f"{sys.executable} -S -c 'while True: pass' >/dev/null 2>&1 & echo $!"  # no children of the training
    others = [int(subprocess.check_output(["sh", "-c", compute])) for _ in range(cores)]
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    try:
        clock.train(model, optimizer, ([torch.randn(64, 256), torch.randint(0, 10, (64,))] for _ in range(800)))
    finally:
        for other in others:
            os.kill(other, signal.SIGKILL)
    clock.done()
