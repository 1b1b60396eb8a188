"""A whole training under `ddlprof run` on a kind of device that torch lets anybody make in Python.

Its backend is registered by the script, after torch's import, as those of many makers are. The device says itself how
long it was busy.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils import backend_registration

from tests.integration.hooks.simulated_runs import Run

Completed = subprocess.CompletedProcess[bytes]
STEPS, FIRST = 24, 6
"""All steps, and the first that counts; the device and its hooks are found in those before."""
TRAINING = """\
import sys
import torch
from torch import nn
import python_device as device

device.register(getattr(device, sys.argv[1]))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device.NAME)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
side = device.Stream()
for step in range(STEPS):
    x = torch.randn(4, 8)
    if "prefetch" in sys.argv:
        with device.Module.stream(side):
            x = x.to(device.NAME)
        device.Module.current_stream().wait_stream(side)
    else:
        x = x.to(device.NAME)
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    loss.item()
    print(device.Module.default_stream().timeline.busy_s, side.timeline.busy_s)
"""

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch does not let a device be made in Python",
)


@pytest.fixture
def train(ddlprof: Callable[..., Completed], tmp_path: Path) -> Callable[..., tuple[Run, list[list[float]]]]:
    """Trains on the device; returns the run, and how long its two streams were busy until the end of each step."""

    def run(*words: str) -> tuple[Run, list[list[float]]]:
        shutil.copy(Path(__file__).parent / "python_device.py", tmp_path)
        (tmp_path / "train.py").write_text(TRAINING.replace("STEPS", str(STEPS)))
        done = ddlprof("run", "--quiet", "--out", "run", "train.py", *words)
        assert done.returncode == 0, done.stderr.decode()
        busy = [[float(each) for each in line.split()] for line in done.stdout.decode().splitlines()]
        assert len(busy) == STEPS
        return Run(tmp_path / "run"), busy

    return run


def total(run: Run, name: str) -> float:
    """Seconds of a class in the steps that count."""
    return float(sum(getattr(row, f"{name}_ns") for row in run.rows[FIRST:])) / 1e9


def test_steps_are_those_of_the_device(train: Any) -> None:
    """Waiting for `loss.item()` takes most of the host's time; the device computes meanwhile."""
    run, busy = train("Module")
    assert (run.header.clock, run.header.device) == ("device", "SLOWLY device")
    assert len(run.rows) == STEPS
    worked = busy[-1][0] - busy[FIRST - 1][0]
    assert total(run, "compute") + total(run, "h2d") > 0.9 * worked
    assert total(run, "other") < 0.3 * total(run, "step")
    parts = [total(run, f"compute_{part}") for part in ("forward", "backward", "optimizer")]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(total(run, "compute"))
    assert 0.05 * worked < total(run, "h2d") < 0.3 * worked  # 3 of 28 ms
    assert all(row.peak_memory_bytes is None for row in run.rows[FIRST:])
    assert "not measured: use and power of the device" in run.notes["device"]
    assert "waits between streams" not in run.notes["device"]


def test_a_wait_for_copies_of_another_stream_is_h2d(train: Any) -> None:
    """Torch's hooks of events in Python see it, though they were installed when the device was found."""
    run, busy = train("Module", "prefetch")
    copied = busy[-1][1] - busy[FIRST - 1][1]
    assert 0.1 * copied < total(run, "h2d") < 0.4 * total(run, "step")  # a host that is held up finds it copied
    assert max(row.h2d_ns for row in run.rows[FIRST:]) > 0.5e9 * copied / (STEPS - FIRST)


def test_events_that_take_no_times_leave_the_classes_empty(train: Any) -> None:
    run, _ = train("Bare")
    assert (run.header.clock, run.header.device) == ("host", "slowly")
    assert len(run.rows) == STEPS
    assert all(row.compute_ns is row.h2d_ns is None for row in run.rows)
    assert "not measured: " in run.notes["device"]
    assert "steps are timed on the training thread" in run.notes["device"]
