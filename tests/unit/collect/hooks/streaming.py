"""A training on the simulated device, whose streams wait for each other, recorded by a whole session.

Compute kernels take milliseconds, so that the host is ahead and nothing but communication or copies leaves a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlprof.collect.session import Session
from ddlprof.model.options import Options
from ddlprof.model.records import StepRow
from ddlprof.writing.writer import rank_files
from scripts.lab.simulated_cuda import Machine
from tests.records import records_in

MS = 1_000_000
NS = 2e-6
"""Milliseconds, two: the time between two events is a 32-bit float."""
STEPS = 6
BEGIN_MS = 1.25
"""Of a kernel that begins a step."""


def compute(ms: float) -> None:
    torch.cuda._sleep(round(ms * MS))


class Layer(nn.Module):
    """`before` is called in front of its computation; its backward calls `during_backward`."""

    def __init__(self, before: Callable[[], None], during_backward: Callable[[], None]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.before, self.during_backward = before, during_backward

    def forward(self, x: Tensor) -> Tensor:
        self.before()
        compute(2)
        y: Tensor = self.linear(x)
        y.register_hook(self._in_backward)
        return y

    def _in_backward(self, gradient: Tensor) -> None:
        compute(3)
        self.during_backward()


class Training:
    """Steps of a session in a group of one rank on one simulated device."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine, self.folder = machine, folder
        self.gradients = torch.ones(4, device="cuda")
        self.before: Callable[[], None] = lambda: None
        self.during_backward: Callable[[], None] = lambda: None
        self.after_backward: Callable[[], None] = lambda: None
        self.session = Session(Options(out=str(folder), quiet=True), "train", [])
        self.session.begin()
        self.session.rank_group.in_group = True
        self.session.rank_group.install()

    def reduce(self, **how: Any) -> Any:
        """A collective."""
        return dist.all_reduce(self.gradients, **how)

    def run(self, model: nn.Module | None = None, steps: int = STEPS) -> list[StepRow]:
        """All rows but the first, in which the device's clock is found."""
        model = model or Layer(lambda: self.before(), lambda: self.during_backward()).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.ones(2, 4, device="cuda")
        for _ in range(steps):
            optimizer.zero_grad()
            compute(BEGIN_MS)
            loss = model(x).sum()
            compute(1)
            loss.backward()
            self.after_backward()
            compute(1)
            optimizer.step()
        torch.cuda.current_stream().synchronize()
        self.session.finish("ok", 0)
        rows = [record for tag, record in self.records() if tag == "s"]
        assert len(rows) == steps
        return rows[1:]

    def records(self) -> list[tuple[str, Any]]:
        text, _ = rank_files(self.folder, 0, 0)
        return records_in(text)

    def blocked_ms(self) -> float:
        """How long the compute stream had nothing to do in a step, by the device's own log, the first left out."""
        blocked: list[float] = []
        done = [a for a in self.machine.activities if (a.device, a.stream) == (0, 0)]
        for before, kernel in pairwise(done):
            if kernel.name == "sleep" and kernel.end_ns - kernel.begin_ns == BEGIN_MS * MS:
                blocked.append(0)
            if blocked:
                blocked[-1] += (kernel.begin_ns - before.end_ns) / MS
        return median(blocked[1:])


def median_ms(rows: list[StepRow], name: str) -> float:
    """Of the time that steps give to a class."""
    return float(median(getattr(row, f"{name}_ns") for row in rows)) / MS
