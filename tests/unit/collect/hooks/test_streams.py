"""Waits of streams for streams: the simulated device's own log says how long it was blocked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddlprof.collect.hooks import collective
from ddlprof.collect.hooks.streams import COMM, COPY, EventClocks, VectorClock, WorkQueue
from ddlprof.model.records import StepRow
from scripts.lab import simulated_cuda
from scripts.lab.simulated_cuda import Machine
from tests.unit.collect.hooks.streaming import MS, NS, Training, compute, median_ms


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated_cuda.simulated() as machine:
        machine.collective_ns = 8 * MS
        dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
        try:
            yield machine
        finally:
            dist.destroy_process_group()


@pytest.fixture
def training(machine: Machine, tmp_path: Path) -> Iterator[Training]:
    training = Training(machine, tmp_path)
    yield training
    training.session.uninstall()


def check(training: Training, name: str = "comm", least_ms: float = 3) -> list[StepRow]:
    rows = training.run()
    blocked = training.blocked_ms()
    assert blocked > least_ms
    assert median_ms(rows, name) == pytest.approx(blocked, abs=NS)
    return rows


@pytest.mark.parametrize("wait", [torch.cuda.synchronize, None])
def test_zero_overlapping_its_reductions(wait: Any, training: Training) -> None:
    """DeepSpeed reduces on a stream in backward and then waits for the device, or for the stream."""
    side = torch.cuda.Stream()

    def during_backward() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            training.reduce(async_op=True).wait()

    training.during_backward = during_backward
    training.after_backward = wait or side.synchronize
    rows = training.run()
    launch_ms = training.machine.launch_ns / MS  # of the next kernel, which the host has waited with
    assert median_ms(rows, "comm") == pytest.approx(training.blocked_ms() - launch_ms, abs=NS)
    assert median_ms(rows, "comm") > 6


def test_collectives_on_the_compute_stream_itself(training: Training) -> None:
    """As NCCL does what is synchronous: nobody waits for a Work."""
    training.after_backward = training.reduce
    rows = training.run()
    assert median_ms(rows, "comm") == pytest.approx(8, abs=NS)


@pytest.mark.parametrize("first_ms", [2, 8])
def test_groups_whose_collectives_overlap(first_ms: int, training: Training) -> None:
    """Each group has a stream of its own: the collective that was issued last may be over first."""
    other = dist.new_group([0])

    def after_backward() -> None:
        training.machine.collective_ns = first_ms * MS
        first = training.reduce(async_op=True)
        training.machine.collective_ns = 5 * MS
        second = training.reduce(async_op=True, group=other)
        second.wait()
        compute(1)
        first.wait()

    training.after_backward = after_backward
    check(training, least_ms=4.9)


def test_groups_that_side_streams_wait_for(training: Training) -> None:
    """A stream that waited for one group's collective says nothing of the other group's."""
    other, sides = dist.new_group([0]), [torch.cuda.Stream(), torch.cuda.Stream()]

    def after_backward() -> None:
        training.machine.collective_ns = 9 * MS
        long = training.reduce(async_op=True)
        training.machine.collective_ns = 2 * MS
        short = training.reduce(async_op=True, group=other)
        for side, work in zip(sides, (long, short), strict=True):
            with torch.cuda.stream(side):
                work.wait()
        for side in reversed(sides):
            torch.cuda.current_stream().wait_stream(side)
            compute(1)

    training.after_backward = after_backward
    check(training, least_ms=7.9)


def test_a_stream_that_waited_for_communication_passes_it_on(training: Training) -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()

    def after_backward() -> None:
        first.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(first):
            training.reduce()
        second.wait_event(first.record_event())
        torch.cuda.current_stream().wait_stream(second)

    training.after_backward = after_backward
    check(training)


@pytest.mark.parametrize("how", ["stream", "event"])
def test_prefetched_copies(how: str, training: Training) -> None:
    side, host, there = torch.cuda.Stream(), torch.ones(8).pin_memory(), torch.empty(8, device="cuda")
    event = torch.cuda.Event()

    def prefetch() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            there.copy_(host, non_blocking=True)
            compute(5)  # a large one would take the host as long
            event.record()

    def before() -> None:
        prefetch()
        if how == "stream":
            torch.cuda.current_stream().wait_stream(side)
        else:
            event.wait()

    training.before = before
    rows = check(training, "h2d", least_ms=2)
    assert median_ms(rows, "comm") == 0


def test_communication_nobody_was_seen_to_wait_for_is_not_measured(training: Training) -> None:
    """And the all-reduce of a norm, which is waited for, does not change that."""
    side = torch.cuda.Stream()

    def during_backward() -> None:
        with torch.cuda.stream(side):
            training.reduce()

    training.during_backward, training.after_backward = during_backward, training.reduce
    rows = training.run()
    assert [row.comm_ns for row in rows] == [None] * len(rows)
    (note,) = (record.message for tag, record in training.records() if tag == "n" and record.source == "comm")
    assert "not measured as long as no wait" in note


def test_background_threads_are_not_the_steps(training: Training) -> None:
    """An asynchronous checkpoint."""

    def save() -> None:
        training.reduce()
        training.reduce(async_op=True).wait()

    def before() -> None:
        thread = threading.Thread(target=save)
        thread.start()
        thread.join()

    training.before = before
    rows = training.run()
    assert median_ms(rows, "comm") == 0


def data_parallel(training: Training, copy_ms: float) -> Callable[[], None]:
    """As DDP's reducer: one bucket, and after the backward it waits and copies the bucket into gradients."""

    def during_backward() -> None:
        work = training.reduce(async_op=True)
        future = work.get_future()

        def finalize() -> None:
            future.wait()
            if copy_ms:
                compute(copy_ms)

        compute(2)
        torch.autograd.Variable._execution_engine.queue_callback(finalize)

    return during_backward


@pytest.mark.parametrize("copy_ms", [0, 6])
def test_copies_after_the_last_collective_of_ddp_are_compute(
    copy_ms: float, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective, "_never_blocks", lambda group, device, backend: True)
    training.during_backward = data_parallel(training, copy_ms)
    rows = check(training)
    assert median_ms(rows, "compute") == pytest.approx(9 + copy_ms, abs=0.05)  # some small operators


def test_nothing_waits_on_a_device_while_it_is_captured(training: Training) -> None:
    side = torch.cuda.Stream()

    def after_backward() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            main.wait_stream(side)
        graph.replay()

    training.after_backward = after_backward
    rows = training.run()
    assert median_ms(rows, "comm") == 0


MAIN, SIDE, OTHER = (0, 0), (0, 1), (0, 2)


def waits(streams: VectorClock, waiting: tuple[int, int], awaited: tuple[int, int]) -> set[str]:
    newer = streams.newer(waiting, streams.on(awaited))
    streams.wait(waiting, newer)
    return {source.what for source in newer}


def test_a_wait_is_for_what_was_issued_since_the_last() -> None:
    streams = VectorClock()
    assert waits(streams, MAIN, SIDE) == set()
    streams.issue(SIDE, WorkQueue(SIDE, COMM))
    streams.issue(SIDE, WorkQueue(SIDE, COPY))
    assert waits(streams, MAIN, SIDE) == {COMM, COPY}
    assert waits(streams, MAIN, SIDE) == set()
    streams.issue(SIDE, WorkQueue(SIDE, COPY))
    assert waits(streams, MAIN, SIDE) == {COPY}


def test_an_event_holds_what_was_there_when_it_was_recorded() -> None:
    streams = VectorClock()
    streams.issue(SIDE, WorkQueue(SIDE, COMM), "first")
    event = streams.on(SIDE)
    streams.issue(SIDE, WorkQueue(SIDE, COMM), "second")
    newer = streams.newer(MAIN, event)
    streams.wait(MAIN, newer)
    assert streams.take_items(newer) == ("first",)
    assert streams.take_items(streams.newer(MAIN, streams.everything())) == ("second",)


def test_marks_of_events_of_any_class() -> None:
    class InC:
        __slots__ = ("__weakref__",)

    class WithoutWeakReferences:
        __slots__ = ("__dict__",)

    for event in (InC(), WithoutWeakReferences()):
        marks, found = EventClocks(), {WorkQueue((0, 1), COMM): 1}
        assert marks.get(event) is None
        marks.set(event, found)
        assert marks.get(event) is found
        assert EventClocks().get(event) is None
        marks.drop(event)
        assert marks.get(event) is None
        marks.drop(event)
