"""From chunks to events with times: in order, in pieces, and asked of a device only where it may be asked."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ddlprof.collect import handover as module
from ddlprof.collect.handover import Handover
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Event, Kind


class Device:
    """Has passed so many events, which are numbered from 0."""

    lag_ns: int | None = None

    def __init__(self, passed: float = float("inf")) -> None:
        self.passed = passed
        self.asked: list[int] = []
        self.resolved: list[int] = []

    def ready(self, chunk: list[Event]) -> bool:
        self.asked.append(len(chunk))
        return all(event[1] < self.passed for event in chunk)

    def resolve(self, piece: list[Event]) -> list[Event]:
        assert self.ready(piece)
        self.asked.pop()
        self.resolved.append(len(piece))
        self.lag_ns = piece[-1][1]
        return piece


class Rig:
    def __init__(self, device: Any, *sizes: int) -> None:
        self.recorder = Recorder()
        self.recorder.device = device
        self.lags: list[int] = []
        self.free = threading.Lock()
        self.handover = Handover(self.recorder, self.lags.append, self.free)
        self.count = 0
        self.put(*sizes)

    def put(self, *sizes: int) -> None:
        for size in sizes:
            chunk: list[Event] = [(Kind.EPOCH, self.count + n, None, None, None) for n in range(size)]
            self.recorder.chunks.append(chunk)
            self.count += size

    def numbers(self) -> list[int]:
        return [event[1] for piece in self.handover.take() for event in piece]


def test_without_a_device_chunks_are_what_they_are() -> None:
    rig = Rig(None, 100, 0, 3)
    assert [len(piece) for piece in rig.handover.take()] == [100, 0, 3]


def test_a_long_chunk_comes_in_pieces() -> None:
    device = Device()
    rig = Rig(device, 100, 5)
    assert rig.numbers() == list(range(105))
    assert device.resolved == [32, 32, 32, 4, 5]


def test_a_device_that_has_not_passed_them_all_is_asked_about_the_next() -> None:
    device = Device(passed=5)
    rig = Rig(device, 2, 2, 2)
    assert rig.numbers() == [0, 1, 2, 3]
    assert len(rig.recorder.chunks) == 1
    device.passed = 6
    assert rig.numbers() == [4, 5]


def test_a_capture_that_begins_inside_a_chunk_leaves_the_rest_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CAPTURE_WAIT_S", 0.01)
    rig = Rig(Device(), 100, 5)
    pieces = rig.handover.take()
    first = next(pieces)
    with rig.free:
        assert list(pieces) == []
    assert [event[1] for event in first] + rig.numbers() == list(range(105))


def test_what_is_taken_is_counted_and_what_is_given_back_is_not() -> None:
    rig = Rig(None, 100, 3)
    assert rig.numbers() == list(range(103))
    assert rig.recorder.taken == 103
    rig = Rig(Device(), 100)
    taking = rig.handover.take()
    next(taking)
    rig.free.acquire()  # a capture begins, and does not end
    assert list(taking) == []
    assert rig.recorder.taken == 32
