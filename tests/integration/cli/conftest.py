"""Real processes: a script run by python, and the same script run by ddlprof."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes import Processes

TRAINING = """\
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
if "--distributed" in sys.argv:
    torch.distributed.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
if "--distributed" in sys.argv:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=4)
log = open("steps.log", "a")
step = 0
while step < STEPS:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        time.sleep(0.003)
        optimizer.step()
        print(time.time(), file=log, flush=True)
        step += 1
        if step == STEPS:
            break
sys.stdout.write(f"trained {step} {sum(p.sum().item() for p in model.parameters())}\\n")
"""


@pytest.fixture
def write_training(tmp_path: Path) -> Callable[..., str]:
    """Writes a small training script that ends with the lines `after`; the time of each step goes to `steps.log`."""

    def write(steps: int, after: str = "") -> str:
        (tmp_path / "train.py").write_text(TRAINING.replace("STEPS", str(steps)) + after)
        return "train.py"

    return write


@pytest.fixture
def execute(processes: Processes) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs a command in the test's directory to its end; `cold`: see `Processes.start`."""

    def run(
        *command: str, stdin: bytes = b"", cold: bool = False, **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        return processes.run(*command, stdin=stdin, cold=cold, env=environment)

    return run


@pytest.fixture
def ddlprof(
    execute: Callable[..., subprocess.CompletedProcess[bytes]],
) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs a ddlprof command in the test's directory to its end."""

    def run(*words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
        return execute(sys.executable, "-m", "ddlprof", *words, **more)

    return run


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 32 KiB, with a short path: the sockets of loader workers have one of 107 bytes at most."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root to mount a file system")
    with tempfile.TemporaryDirectory(prefix="disk") as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", folder], check=False).returncode:
            pytest.skip("cannot mount a file system here")
        yield Path(folder)
        subprocess.run(["umount", folder], check=True)
