"""What only a CUDA device shows: its own timeline, copies, streams and graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ddlprof.collect.session import Session
from ddlprof.model import codec
from ddlprof.model.options import Options
from ddlprof.model.records import Note, StepRow
from tests.records import records_in

pytestmark = pytest.mark.gpu

Loop = Callable[[], None]
WIDTH, STEPS, SKIPPED = 4096, 20, 8
"""Enough arithmetic for some milliseconds a step on any device; the first steps allocate and warm up."""


@pytest.fixture
def measured(tmp_path: Path) -> Callable[[Loop], list[StepRow]]:
    """Runs a training loop under a session and returns its steps after the first ones."""

    def run(loop: Loop) -> list[StepRow]:
        torch.zeros(1, device="cuda")
        session = Session(Options(out=str(tmp_path / "run"), quiet=True), "cuda", [])
        session.begin()
        try:
            loop()
        finally:
            session.finish("ok", 0)
        text = tmp_path / "run" / "attempt-0" / "rank-0.jsonl"
        assert codec.decode_header(text.read_text().split("\n")[0]).clock == "device"
        records = records_in(text)
        notes: list[Note] = [record for tag, record in records if tag == "n"]
        assert [note for note in notes if note.source != "context"] == []  # which tells of other work on the GPU
        rows: list[StepRow] = [record for tag, record in records if tag == "s"]
        for row in rows:
            classes = (row.compute_ns or 0, row.data_ns or 0, row.h2d_ns or 0, row.comm_ns or 0, row.other_ns)
            assert min(classes) >= 0
            assert sum(classes) == row.step_ns
        assert len(rows) == STEPS
        return rows[SKIPPED:]

    return run


def net() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).cuda()
    return model, torch.optim.SGD(model.parameters(), lr=1e-6)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()


def mean(rows: list[StepRow], name: str) -> float:
    return sum(getattr(row, f"{name}_ns") or 0 for row in rows) / len(rows)


def test_steps_on_the_devices_timeline(measured: Any) -> None:
    """The sum of the steps is the time between two events of the script's own."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def loop() -> None:
        model, optimizer = net()
        x = torch.ones(WIDTH, WIDTH, device="cuda")
        for step in range(STEPS):
            update(model, optimizer, x)
            if step == SKIPPED - 1:
                begin.record()
        end.record()
        torch.cuda.synchronize()

    rows = measured(loop)
    truth_ns = begin.elapsed_time(end) * 1e6
    assert sum(row.step_ns for row in rows) == pytest.approx(truth_ns, rel=0.02)
    assert mean(rows, "compute") > 0.9 * mean(rows, "step")


@pytest.mark.parametrize("synchronise", [True, False])
def test_a_script_that_ends_without_waiting_for_the_device(synchronise: bool, measured: Any) -> None:
    def loop() -> None:
        model, optimizer = net()
        x = torch.ones(WIDTH, WIDTH, device="cuda")
        for _ in range(STEPS):
            update(model, optimizer, x)
        if synchronise:
            torch.cuda.synchronize()

    assert mean(measured(loop), "compute") > 0


@pytest.mark.parametrize(("pinned", "non_blocking"), [(False, False), (True, False), (True, True)])
def test_copies_to_the_device(pinned: bool, non_blocking: bool, measured: Any) -> None:
    def loop() -> None:
        model, optimizer = net()
        x = torch.ones(WIDTH, WIDTH, pin_memory=pinned)
        for _ in range(STEPS):
            update(model, optimizer, x.to("cuda", non_blocking=non_blocking))

    rows = measured(loop)
    bytes_a_step = 4 * WIDTH * WIDTH
    assert bytes_a_step / 1e12 * 1e9 < mean(rows, "h2d")  # no bus moves a terabyte a second
    assert mean(rows, "h2d") < mean(rows, "step")


def test_copies_on_a_side_stream_hidden_behind_computation(measured: Any) -> None:
    def loop() -> None:
        model, optimizer = net()
        side = torch.cuda.Stream()
        x = torch.ones(WIDTH, 64, pin_memory=True)
        batch = torch.ones(WIDTH, WIDTH, device="cuda")
        for _ in range(STEPS):
            with torch.cuda.stream(side):
                copied = x.to("cuda", non_blocking=True)
            update(model, optimizer, batch)
            torch.cuda.current_stream().wait_stream(side)
            copied.record_stream(torch.cuda.current_stream())

    rows = measured(loop)
    assert mean(rows, "h2d") < 0.1 * mean(rows, "step")


def test_a_loader_that_keeps_up_costs_nothing(measured: Any) -> None:
    """The loop waits a little for each batch while the device still has work."""

    def loop() -> None:
        model, optimizer = net()
        x = torch.ones(WIDTH, WIDTH, device="cuda")
        for _ in DataLoader(list(range(STEPS)), batch_size=1):  # type: ignore[arg-type]
            update(model, optimizer, x)

    rows = measured(loop)
    assert mean(rows, "data") < 0.02 * mean(rows, "step")


def test_an_idle_device_waits_for_data(measured: Any) -> None:
    import time

    class Slow(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> int:
            time.sleep(0.2)
            return index

    def loop() -> None:
        model, optimizer = net()
        x = torch.ones(64, WIDTH, device="cuda")
        for _ in DataLoader(Slow()):
            update(model, optimizer, x)

    rows = measured(loop)
    assert mean(rows, "data") > 0.8 * mean(rows, "step")


def test_graphs_are_captured_unharmed(measured: Any) -> None:
    """Events are neither recorded nor queried in a way that would break a capture."""
    results: list[torch.Tensor] = []

    def loop() -> None:
        model, optimizer = net()
        x = torch.ones(64, WIDTH, device="cuda")
        for _ in range(STEPS // 2):
            update(model, optimizer, x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            y = model(x)
        for _ in range(STEPS - STEPS // 2):
            update(model, optimizer, x)
            graph.replay()
        torch.cuda.synchronize()
        assert torch.allclose(y, model(x), rtol=0.1)
        results.append(y.detach())

    measured(loop)
    assert results
