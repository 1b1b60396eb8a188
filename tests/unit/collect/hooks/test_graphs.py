"""CUDA graph captures keep the helper from asking the device, and replays happen as what was captured."""

from __future__ import annotations

from threading import Lock, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.collect.hooks.graphs import Captures, install
from ddlprof.collect.install import Uninstall
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind


class Torch:
    """As much of torch as there is to captures."""

    def __init__(self, fails: bool = False) -> None:
        torch = self

        class CUDAGraph:
            def capture_begin(self) -> None:
                if fails:
                    raise RuntimeError("no memory")
                torch.capturing = True

            def capture_end(self) -> None:
                torch.capturing = False

            def replay(self) -> str:
                return "replayed"

        self.capturing = False
        self.cuda = SimpleNamespace(CUDAGraph=CUDAGraph, is_current_stream_capturing=lambda: self.capturing)
        self.free = Lock()
        self.recorder = Recorder(clock=lambda: 0)
        self.notes: list[str] = []

    def install(self) -> Uninstall:
        captures = Captures(self.recorder, self, self.free, lambda hook, message: self.notes.append(message))
        return install(self, captures)

    def events(self) -> list[tuple[Any, ...]]:
        recorder = self.recorder
        return [(event[0], *event[2:]) for chunk in [*recorder.chunks, recorder.take_rest()] for event in chunk]


@pytest.fixture
def torch() -> Torch:
    return Torch()


def test_the_device_is_not_free_during_a_capture(torch: Torch) -> None:
    uninstall = torch.install()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    assert torch.free.locked()
    graph.capture_end()
    assert not torch.free.locked()
    uninstall()
    graph.capture_begin()
    assert not torch.free.locked()


def test_a_capture_that_does_not_begin_frees_the_device() -> None:
    torch = Torch(fails=True)
    torch.install()
    with pytest.raises(RuntimeError, match="no memory"):
        torch.cuda.CUDAGraph().capture_begin()
    assert not torch.free.locked()


def test_captures_that_overlap_do_not_wait_for_each_other(torch: Torch) -> None:
    uninstall = torch.install()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    done: list[bool] = []

    def capture() -> None:
        first.capture_begin()
        second.capture_begin()
        first.capture_end()
        done.append(torch.free.locked())
        second.capture_end()

    thread = Thread(target=capture, daemon=True)
    thread.start()
    thread.join(10)
    uninstall()
    assert done == [True]
    assert not torch.free.locked()


def test_a_capture_ends_with_its_graph(torch: Torch) -> None:
    torch.install()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    del graph
    assert not torch.free.locked()
    assert torch.recorder.emit(Kind.FORWARD_BEGIN, True)
    assert len(torch.events()) == 1


@pytest.mark.parametrize("kind", [Kind.DATA_BEGIN, Kind.OPTIMIZER_END])
def test_a_capture_left_by_an_exception_ends_when_the_training_goes_on(torch: Torch, kind: Kind) -> None:
    torch.install()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    torch.capturing = False  # the stream is the current one no longer
    torch.recorder.emit(kind, 0)
    assert not torch.free.locked()
    assert kind in [event[0] for event in torch.events()]


def test_what_is_captured_has_not_happened(torch: Torch) -> None:
    torch.install()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    assert torch.recorder.emit(Kind.OPTIMIZER_END, 0, False, ("SGD", 3))
    graph.capture_end()
    assert torch.events() == []
    assert torch.recorder.boundaries == 0


def test_each_replay_of_a_captured_update_is_one(torch: Torch) -> None:
    torch.install()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    torch.recorder.emit(Kind.BACKWARD_BEGIN)
    torch.recorder.emit(Kind.OPTIMIZER_END, 0, False, ("SGD", 3))
    graph.capture_end()
    assert [graph.replay(), graph.replay()] == ["replayed"] * 2
    updates = [event for event in torch.events() if event[0] == Kind.OPTIMIZER_END]
    assert updates == [(Kind.OPTIMIZER_END, 0, False, ("SGD", 3)), (Kind.OPTIMIZER_END, 0, False, None)]
    assert torch.recorder.boundaries == 2
    assert len(torch.notes) == 1


def test_collectives_in_a_replay_are_said_to_be_unseen(torch: Torch) -> None:
    torch.install()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    torch.recorder.emit(Kind.BACKWARD_BEGIN)
    torch.recorder.emit_in_backward(Kind.COLLECTIVE, object())
    graph.capture_end()
    graph.replay()
    assert (Kind.UNSEEN, 1, None, None) in torch.events()


def test_a_replay_of_a_forward_alone_is_part_of_what_is_under_way(torch: Torch) -> None:
    torch.install()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    torch.recorder.emit(Kind.FORWARD_BEGIN, True)
    graph.capture_end()
    assert graph.replay() == "replayed"
    assert torch.events() == []
