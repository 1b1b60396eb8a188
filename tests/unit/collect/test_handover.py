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


def test_what_the_device_is_behind_is_told_before_the_events_it_is_of() -> None:
    rig = Rig(Device(), 3, 3)
    told = [(list(rig.lags), [event[1] for event in piece]) for piece in rig.handover.take()]
    assert told == [([2], [0, 1, 2]), ([2, 5], [3, 4, 5])]


def test_a_device_is_asked_once_about_several_chunks() -> None:
    device = Device()
    rig = Rig(device, *[2] * 20)
    assert rig.numbers() == list(range(40))
    assert device.asked == [16, 16, 8]


def test_a_device_that_has_not_passed_them_all_is_asked_about_the_next() -> None:
    device = Device(passed=5)
    rig = Rig(device, 2, 2, 2)
    assert rig.numbers() == [0, 1, 2, 3]
    assert len(rig.recorder.chunks) == 1
    device.passed = 6
    assert rig.numbers() == [4, 5]


def test_chunks_that_come_meanwhile_wait_for_the_device() -> None:
    device = Device(passed=4)
    rig = Rig(device, 2, 2)
    pieces = rig.handover.take()
    assert len(next(pieces)) == 2
    rig.put(2)
    assert [event[1] for piece in pieces for event in piece] == [2, 3]
    assert len(rig.recorder.chunks) == 1


def test_a_capture_that_begins_inside_a_chunk_leaves_the_rest_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CAPTURE_WAIT_S", 0.01)
    rig = Rig(Device(), 100, 5)
    pieces = rig.handover.take()
    first = next(pieces)
    with rig.free:
        assert list(pieces) == []
    assert [event[1] for event in first] + rig.numbers() == list(range(105))


def test_the_device_may_be_captured_between_two_pieces() -> None:
    rig = Rig(Device(), 100)
    for _ in rig.handover.take():
        assert not rig.free.locked()


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
