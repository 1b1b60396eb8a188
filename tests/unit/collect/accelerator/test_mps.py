"""Apple's GPUs: what is asked of torch.mps, and a training on one where there is one."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddlprof.collect.accelerator import known
from ddlprof.collect.accelerator.clock import NEVER, DeviceClock
from ddlprof.collect.accelerator.mps import Mps
from ddlprof.collect.session import Session
from ddlprof.model import codec
from ddlprof.model.options import Options
from tests.records import records_in

STEPS = 20


class Event:
    """As torch.mps.event.Event, on a device that is never behind."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert not enable_timing  # each would make the stream tell the host of it

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        raise AssertionError("it makes the stream do all its work")


class OneGpu(SimpleNamespace):
    """A torch for Macs."""

    def __init__(self) -> None:
        waits: list[str] = []
        super().__init__(
            device=torch.device,
            accelerator=SimpleNamespace(current_accelerator=lambda: torch.device("mps")),
            backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True)),
            mps=SimpleNamespace(
                event=SimpleNamespace(Event=Event),
                synchronize=lambda: waits.append("device"),
                driver_allocated_memory=lambda: 2**30,
            ),
            waits=waits,
        )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> OneGpu:
    monkeypatch.setattr(Mps, "seen", False)
    return OneGpu()


def test_it_is_the_kind_of_such_a_torch(gpu: OneGpu) -> None:
    found = known.of_torch(gpu)
    assert isinstance(found, Mps)
    assert known.at_start(gpu) is None
    assert found.device_names() == ["Apple GPU"]
    assert found.current_stream("mps:0") == found.default_stream()


def test_its_memory_is_asked_only_once_it_is_used(gpu: OneGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking would make a process use the GPU that computes on the host."""
    monkeypatch.setitem(sys.modules, "torch", gpu)
    assert known.in_use() is None
    Mps(gpu).see()
    found = known.in_use()
    assert found is not None
    counters = found.counters()
    assert counters is not None
    assert (counters.percent(), counters.memory_bytes(), counters.power_w()) == (None, 2**30, None)


def test_its_events_are_polled_and_the_only_wait_is_the_first(gpu: OneGpu) -> None:
    mps = Mps(gpu)
    clock = DeviceClock(mps.driver(torch.device("mps", 0)), mps.current_stream(), lambda: False)
    assert clock._next_anchor == NEVER
    chunk: list[Any] = [(kind, clock(), None, None, None) for kind in range(3)]
    while not clock.ready(chunk):
        time.sleep(0.001)
    times = [at for _, at, *_ in clock.resolve(chunk)]
    assert times == sorted(times)
    assert gpu.waits == ["device"]


@pytest.fixture
def real_gpu() -> None:
    if not torch.backends.mps.is_available():
        pytest.skip("needs an Apple GPU")
    try:
        torch.ones(2, device="mps").sum().item()
    except RuntimeError as error:  # a virtual machine's may have no memory
        pytest.skip(f"the GPU does not work here: {error}")


@pytest.mark.usefixtures("real_gpu")
def test_a_training_on_it(tmp_path: Path) -> None:
    session = Session(Options(out=str(tmp_path), quiet=True), "mps", [])
    session.begin()
    model = torch.nn.Linear(256, 256).to("mps")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.ones(64, 256).to("mps")).sum()
        loss.backward()
        optimizer.step()
        loss.item()
    session.finish("ok", 0)
    text = tmp_path / "attempt-0" / "rank-0.jsonl"
    rows = [row for tag, row in records_in(text) if tag == "s"]
    assert codec.decode_header(text.read_text().split("\n")[0]).clock == "device"
    assert len(rows) == STEPS
    assert sum(row.compute_ns or 0 for row in rows[4:]) > 0
