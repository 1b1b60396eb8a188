"""CUDA graph captures keep the helper from asking the device, and replays happen as what was captured."""

from __future__ import annotations

from threading import Lock, Thread
from typing import Any

import pytest
import torch

from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.install import Uninstall
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import FirstSeen, Kind
from tests.unit.collect.toy_accelerator import Toy


class Captured:
    """As much of a device as there is to captures."""

    def __init__(self, fails: bool = False) -> None:
        device = self

        class CUDAGraph:
            def capture_begin(self) -> None:
                if fails:
                    raise RuntimeError("no memory")
                device.capturing = True

            def capture_end(self) -> None:
                device.capturing = False

            def replay(self) -> str:
                return "replayed"

        self.capturing = False
        self.graph = CUDAGraph
        self.accelerator = Toy(self)
        self.accelerator.graph_types = (CUDAGraph,)
        self.accelerator.is_capturing = lambda: self.capturing
        self.free = Lock()
        self.recorder = Recorder(clock=lambda: 0)
        self.notes: list[str] = []

    def install(self) -> Uninstall:
        self.recorder.note = lambda hook, message: self.notes.append(message)
        return hook_context(torch, self.recorder, self.accelerator, device_free=self.free).captures.install()

    def events(self) -> list[tuple[Any, ...]]:
        recorder = self.recorder
        return [(event[0], *event[2:]) for chunk in [*recorder.chunks, recorder.take_rest()] for event in chunk]


@pytest.fixture
def device() -> Captured:
    return Captured()


def test_a_capture_that_does_not_begin_frees_the_device() -> None:
    device = Captured(fails=True)
    device.install()
    with pytest.raises(RuntimeError, match="no memory"):
        device.graph().capture_begin()
    assert not device.free.locked()


def test_captures_that_overlap_do_not_wait_for_each_other(device: Captured) -> None:
    uninstall = device.install()
    first, second = device.graph(), device.graph()
    done: list[bool] = []

    def capture() -> None:
        first.capture_begin()
        second.capture_begin()
        first.capture_end()
        done.append(device.free.locked())
        second.capture_end()

    thread = Thread(target=capture, daemon=True)
    thread.start()
    thread.join(10)
    uninstall()
    assert done == [True]
    assert not device.free.locked()


@pytest.mark.parametrize("kind", [Kind.DATA_BEGIN, Kind.OPTIMIZER_END])
def test_a_capture_left_by_an_exception_ends_when_the_training_goes_on(device: Captured, kind: Kind) -> None:
    device.install()
    graph = device.graph()
    graph.capture_begin()
    device.capturing = False  # the stream is the current one no longer
    device.recorder.emit(kind, 0)
    assert not device.free.locked()
    assert kind in [event[0] for event in device.events()]


def test_each_replay_of_a_captured_update_is_one(device: Captured) -> None:
    device.install()
    graph = device.graph()
    graph.capture_begin()
    device.recorder.emit(Kind.BACKWARD_BEGIN)
    device.recorder.emit(Kind.OPTIMIZER_END, 0, False, FirstSeen("SGD", 3))
    graph.capture_end()
    assert [graph.replay(), graph.replay()] == ["replayed"] * 2
    updates = [event for event in device.events() if event[0] == Kind.OPTIMIZER_END]
    assert updates == [(Kind.OPTIMIZER_END, 0, False, FirstSeen("SGD", 3)), (Kind.OPTIMIZER_END, 0, False, None)]
    assert device.recorder.boundaries == 2
    assert len(device.notes) == 1


def test_collectives_in_a_replay_are_said_to_be_unseen(device: Captured) -> None:
    device.install()
    graph = device.graph()
    graph.capture_begin()
    device.recorder.emit(Kind.BACKWARD_BEGIN)
    device.recorder.emit_in_backward(Kind.COLLECTIVE, object())
    graph.capture_end()
    graph.replay()
    assert (Kind.UNSEEN, 1, None, None) in device.events()


def test_a_replay_of_a_forward_alone_is_part_of_what_is_under_way(device: Captured) -> None:
    device.install()
    graph = device.graph()
    graph.capture_begin()
    device.recorder.emit(Kind.FORWARD_BEGIN, True)
    graph.capture_end()
    assert graph.replay() == "replayed"
    assert device.events() == []
