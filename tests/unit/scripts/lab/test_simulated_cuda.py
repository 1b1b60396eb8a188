"""The simulated CUDA keeps time and raises errors as CUDA does: other tests count on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

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


def test_a_full_queue_makes_the_launching_thread_wait(machine: Machine) -> None:
    machine.pending, begin_ns = 3, machine.clock.perf_counter_ns()
    for _ in range(5):
        torch.cuda._sleep(1_000_000)
    assert machine.clock.perf_counter_ns() - begin_ns == pytest.approx(1_000_000, abs=50_000)


@pytest.mark.parametrize("one_queue", [False, True])
def test_an_idle_stream_waits_where_there_is_one_queue(machine: Machine, one_queue: bool) -> None:
    machine.one_queue = one_queue
    for _ in range(2):
        torch.cuda._sleep(1_000_000)
    on_idle_stream = event()
    on_idle_stream.record(torch.cuda.Stream())
    assert on_idle_stream.query() is not one_queue


def test_a_work_is_waited_for_alone(machine: Machine) -> None:
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    try:
        values, streams = torch.ones(4, device="cuda"), [torch.cuda.Stream() for _ in range(2)]
        works = []
        for group, machine.collective_ns in ((None, 9_000_000), (dist.new_group([0]), 1_000_000)):
            works.append(dist.all_reduce(values, group=group, async_op=True))
        for stream, work in zip(streams, works, strict=True):
            with torch.cuda.stream(stream):
                work.wait()
        machine.clock.sleep(0.005)
        assert [stream.query() for stream in streams] == [False, True]
    finally:
        dist.destroy_process_group()


def test_backward_has_a_thread_of_its_own(machine: Machine) -> None:
    seen = []
    weight = torch.ones(2, device="cuda").requires_grad_()
    side = torch.cuda.Stream()
    weight.register_hook(lambda gradient: seen.append((threading.current_thread(), torch.cuda.current_stream())))
    with torch.cuda.stream(side):
        (weight * 2).sum().backward()
    ((thread, stream),) = seen
    assert thread is not threading.current_thread()
    assert stream == side


def test_memory_is_that_of_living_tensors(machine: Machine) -> None:
    first = torch.ones(1024, device="cuda")
    view = first[2:]
    second = torch.ones(1024, device="cuda")
    assert torch.cuda.memory_allocated() == 2 * first.nbytes
    del first, second
    assert torch.cuda.memory_allocated() == 4096
    assert torch.cuda.max_memory_allocated() == 8192
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 4096
    del view
    assert torch.cuda.memory_allocated() == 0
