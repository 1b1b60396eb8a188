"""Whole sessions on simulated GPUs: what they left on disk, and a small model to train."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddlprof.model import codec
from ddlprof.model.records import JobSpan, StepRow
from scripts.lab.simulated_cuda import Machine
from tests.records import records_in

STEPS = 12
MS = 1_000_000
SMALL_MS = 0.5
"""All small operators of a step together take less."""


class Run:
    """What a run left on disk."""

    def __init__(self, directory: Path) -> None:
        text = directory / "attempt-0" / "rank-0.jsonl"
        records = records_in(text)
        self.header = codec.decode_header(text.read_text().split("\n")[0])
        self.rows: list[StepRow] = [record for tag, record in records if tag == "s"]
        self.spans: list[JobSpan] = [record for tag, record in records if tag == "p"]
        self.notes = {record.source: record.message for tag, record in records if tag == "n"}
        for row in self.rows:
            classes = (row.compute_ns or 0, row.data_ns or 0, row.h2d_ns or 0, row.comm_ns or 0, row.other_ns)
            assert min(classes) >= 0
            assert sum(classes) == row.step_ns

    def median_ms(self, name: str, after: int = 4) -> float:
        return statistics.median(getattr(row, f"{name}_ns") or 0 for row in self.rows[after:]) / MS


class Training:
    """A small model whose forward keeps the device busy for some time."""

    def __init__(self, device: str = "cuda", busy_ms: float = 10, **options: Any) -> None:
        class Net(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                with torch.cuda.device(x.device):
                    torch.cuda._sleep(int(busy_ms * MS))
                return super().forward(x)

        self.model = Net(4, 4).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, **options)
        self.x = torch.ones(2, 4, device=device)

    def step(self, x: torch.Tensor | None = None) -> None:
        self.optimizer.zero_grad()
        self.model(self.x if x is None else x).sum().backward()
        self.optimizer.step()


def timed_steps() -> tuple[Callable[[], None], Callable[[], float]]:
    """A training of `STEPS` steps, and the device's own time (ns) of those from the fifth on, once it has run."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def loop() -> None:
        training = Training()
        for step in range(STEPS):
            training.step()
            if step == 3:
                begin.record()
        end.record()
        torch.cuda.synchronize()

    return loop, lambda: float(begin.elapsed_time(end)) * MS


def replays(graph: Any, captured: AbstractContextManager[Any], machine: Machine) -> None:
    """Four steps, then one that is `captured` into the graph and replayed `STEPS` times, with the host away between."""
    training, side = Training(capturable=True), torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(4):
            training.step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.stream(side), captured:
        training.step()
    for _ in range(STEPS):
        graph.replay()
        machine.clock.sleep(0.03)
