"""The simulated CUDA keeps time and raises errors as CUDA does: other tests count on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from scripts.lab import simulated_cuda
from scripts.lab.simulated_cuda import Machine, device


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated_cuda.simulated() as machine:
        yield machine


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def test_tensors_compute_what_the_hosts_do(machine: Machine) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    model = torch.nn.Linear(3, 2)
    expected = model(x)
    on_device = model.to("cuda")(x.to("cuda"))
    assert on_device.device == torch.device("cuda", 0)
    assert on_device.is_cuda
    assert torch.equal(on_device.cpu(), expected)
    on_device.sum().backward()
    assert all(p.grad is not None and p.grad.is_cuda for p in model.parameters())


def test_streams_run_side_by_side_and_wait_for_events(machine: Machine) -> None:
    side, begin, slow, after = torch.cuda.Stream(), event(), event(), event()
    begin.record()
    with torch.cuda.stream(side):
        torch.cuda._sleep(30_000_000)
        slow.record()
    assert not slow.query()
    torch.cuda._sleep(1_000_000)
    torch.cuda.current_stream().wait_stream(side)
    after.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(after) >= 30
    assert slow.elapsed_time(after) <= 0.001


def test_what_was_not_waited_for_has_no_time(machine: Machine) -> None:
    begin, end = event(), event()
    begin.record()
    torch.cuda._sleep(50_000_000)
    end.record()
    with pytest.raises(RuntimeError, match="not ready"):
        begin.elapsed_time(end)


def test_a_capture_does_nothing_until_it_is_replayed(machine: Machine) -> None:
    x, graph = torch.ones(2, device="cuda"), torch.cuda.CUDAGraph()
    before = len(machine.activities)
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        x + x
    assert not torch.cuda.is_current_stream_capturing()
    assert len(machine.activities) == before
    graph.replay()
    assert [activity.name for activity in machine.activities][before:] == ["graph"]


@pytest.mark.parametrize("same_thread", [True, False])
@pytest.mark.parametrize("captures", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("asks", [device.GLOBAL, device.THREAD_LOCAL, device.RELAXED])
def test_asking_an_event_ends_a_capture_where_the_modes_forbid_it(
    machine: Machine, asks: int, captures: str, same_thread: bool
) -> None:
    """See `cudaThreadExchangeStreamCaptureMode` in NVIDIA's reference."""
    asked, graph, errors = event(), torch.cuda.CUDAGraph(), []
    asked.record()

    def ask() -> None:
        assert machine.exchange_capture_mode(asks) == device.GLOBAL
        try:
            asked.query()
        except RuntimeError as error:
            errors.append(str(error))
        assert machine.exchange_capture_mode(device.GLOBAL) == asks

    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(capture_error_mode=captures)
    if same_thread:
        ask()
    else:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    own = same_thread and captures != "relaxed" and asks != device.RELAXED
    others = captures == "global" and asks == device.GLOBAL
    if own or others:
        with pytest.raises(RuntimeError, match="during capture"):
            graph.capture_end()
        assert "capturing" in errors[0]
    else:
        graph.capture_end()
        assert errors == []


def test_asking_an_event_makes_a_context_on_the_threads_own_device(machine: Machine) -> None:
    with torch.cuda.device(1):
        asked = event()
        asked.record()
    assert machine.contexts == {1}
    asked.query()
    assert machine.contexts == {0, 1}


def test_copies_from_pageable_memory_are_waited_for(machine: Machine) -> None:
    torch.ones(2**20).to("cuda", non_blocking=True)
    assert torch.cuda.current_stream().query()
    torch.cuda._sleep(20_000_000)
    torch.ones(2).pin_memory().to("cuda", non_blocking=True)
    assert not torch.cuda.current_stream().query()


def test_an_error_is_every_later_calls_error(machine: Machine) -> None:
    machine.error = simulated_cuda.device.ILLEGAL_ACCESS
    with pytest.raises(RuntimeError, match="illegal"):
        torch.cuda.synchronize()


def test_nothing_is_left_of_it() -> None:
    with simulated_cuda.simulated():
        torch.zeros(1, device="cuda")
    assert torch.version.cuda is None
    assert not torch.cuda.is_available()
    assert not torch.cuda.is_initialized()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")
