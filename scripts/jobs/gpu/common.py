"""What the jobs for a GPU share: where they run, a kernel that sleeps, and a clock of their own.

`GPU_REHEARSAL` in the environment: `device` for simulated GPUs, `host` for a stand-in on the processor. Both are small.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

REHEARSAL = os.environ.get("GPU_REHEARSAL", "")
ON_HOST = REHEARSAL == "host"
DEVICE = "cpu" if ON_HOST else "cuda"
_CALIBRATION_CYCLES = 20_000_000


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every job takes."""
    made = argparse.ArgumentParser(description=doc)
    made.add_argument("--truth", type=Path, required=True, help="what the job's own clock says goes here")
    made.add_argument("--steps", type=int, default=100)
    return made


def write(path: Path, content: Any) -> None:
    """Writes the result for whoever started the job."""
    path.write_text(json.dumps(content), encoding="utf-8")


def synchronize() -> None:
    """Waits for the device."""
    if not ON_HOST:
        torch.cuda.synchronize()


class Sleeper:
    """Kernels that do nothing for some milliseconds, on the current stream; a sleep of the thread on the host."""

    def __init__(self) -> None:
        self._cycles_a_ms = 0.0
        if not ON_HOST:
            for _ in range(3):  # the last one: clocks have risen
                begin, end = stamp(), None
                torch.cuda._sleep(_CALIBRATION_CYCLES)
                end = stamp()
                torch.cuda.synchronize()
                self._cycles_a_ms = _CALIBRATION_CYCLES / (1000 * seconds_between(begin, end))

    def __call__(self, ms: float) -> None:
        if ms <= 0:
            return
        if ON_HOST:
            time.sleep(ms / 1000)
        else:
            torch.cuda._sleep(round(ms * self._cycles_a_ms))


class Busy(nn.Module):
    """A layer whose forward keeps the device busy."""

    def __init__(self, sleeper: Sleeper, ms: float, width: int = 64, out: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(width, out)
        self.sleeper, self.ms = sleeper, ms
        self.first_s = 0.0
        """What the first forward takes on the host, as compilation would."""

    def forward(self, x: torch.Tensor) -> Any:
        if self.first_s:
            time.sleep(self.first_s)
            self.first_s = 0.0
        self.sleeper(self.ms)
        return self.layer(x)


def stamp() -> Any:
    """Now, on the current stream's timeline; on the host's, if there is no device."""
    if ON_HOST:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(begin: Any, end: Any) -> float:
    """The seconds between two stamps that the device has passed."""
    return float(end - begin) if ON_HOST else float(begin.elapsed_time(end)) / 1000


class Steps:
    """Stamps of each step by name; a step ends at its stamp `end`, where the next one begins."""

    def __init__(self) -> None:
        self._begin = stamp()
        self._stamps: list[dict[str, Any]] = [{}]

    def mark(self, name: str) -> None:
        """Remembers now."""
        self._stamps[-1][name] = stamp()
        if name == "end":
            self._stamps.append({})

    def table(self) -> list[dict[str, float]]:
        """Seconds: `step`, and of each other stamp those since the stamp before it. Waits for the device."""
        synchronize()
        before, rows = self._begin, []
        for stamps in self._stamps[:-1]:
            row, start = {}, before
            for name, now in stamps.items():
                row[name], before = seconds_between(before, now), now
            row["step"] = seconds_between(start, stamps["end"])
            rows.append(row)
        return rows
