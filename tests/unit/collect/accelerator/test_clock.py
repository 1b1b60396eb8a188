"""The device's clock, on events that tick when the test says so."""

from __future__ import annotations

from typing import Any

import pytest

from ddlprof.collect.accelerator.clock import ANCHOR_NS
from ddlprof.model.events import Event, Kind
from tests.unit.collect.ticking_device import START_NS, Mark, TickingDevice

MS = 1_000_000


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> TickingDevice:
    return TickingDevice(monkeypatch)


def host(milliseconds: float) -> Event:
    return (Kind.FORWARD_BEGIN, START_NS + round(milliseconds * MS), None, None, None)


def test_stamps_are_in_the_hosts_time(device: TickingDevice) -> None:
    """From the moment on in which the device was found: the first forward takes as long as it does."""
    assert device.resolve(host(-5), device.event(30_000), device.event(2)) == [-5 * MS, 30_000 * MS, 30_002 * MS]
    assert device.resolve(device.event(3)) == [30_005 * MS]


def test_a_stamp_in_the_payload_is_a_time_of_its_own(device: TickingDevice) -> None:
    """A wait that was over before the host heard of it."""
    early = device.clock.mark("other stream")
    device.now = 7
    (resolved,) = device.clock.resolve([(Kind.COMM_END, device.clock(), early, None, None)])
    assert resolved[1:3] == (START_NS + 7 * MS, START_NS)


def test_not_ready_while_another_stream_is_behind(device: TickingDevice) -> None:
    """The training has moved to a stream that is ahead of the one that it left."""
    behind = device.event(5)
    device.clock.follow("side")
    device.now = 1
    chunk = [behind, device.event(0)]
    device.passed = 2
    assert not device.clock.ready(chunk)
    device.passed = 5
    assert device.clock.ready(chunk)


def test_a_capture_that_nobody_knew_of_is_waited_for(device: TickingDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk, message = [device.event(1)], "CUDA error: operation not permitted when stream is capturing"

    def query(_: Any) -> bool:
        raise RuntimeError(message)

    monkeypatch.setattr("tests.unit.collect.ticking_device.Mark.query", query)
    assert not device.clock.ready(chunk)
    message = "CUDA error: an illegal memory access was encountered"
    with pytest.raises(RuntimeError, match="illegal"):
        device.clock.ready(chunk)


def test_events_are_used_again(device: TickingDevice) -> None:
    for _ in range(50):
        device.resolve(device.event(1), device.event(1), device.event(1))
    assert device.made <= 5


def test_capture_takes_no_stamps_and_no_time(device: TickingDevice) -> None:
    before = device.event(1)
    device.capturing = True
    inside = device.event(1)
    device.capturing = False
    assert inside[1] is None
    assert device.resolve(before, inside, device.event(1)) == [1 * MS, 1 * MS, 3 * MS]


def test_a_stream_that_is_ahead_adds_no_time_twice(device: TickingDevice) -> None:
    """Stamps of several streams need not come in order."""
    on_side_stream = device.event(10)
    device.now = 4
    on_main_stream = device.event(0)
    assert device.resolve(on_side_stream, on_main_stream, device.event(8)) == [10 * MS, 10 * MS, 12 * MS]


def test_another_device_has_a_timeline_of_its_own(device: TickingDevice) -> None:
    other = TickingDevice()
    before = device.event(1)
    other.now = device.now
    device.clock.follow("training", other)
    other.now = 6
    assert device.resolve(before, (Kind.FORWARD_END, device.clock(), None, None, None)) == [1 * MS, 6 * MS]


@pytest.mark.parametrize("parts_in_a_million", [-100, 30, 100])
def test_the_clocks_do_not_drift_apart(device: TickingDevice, parts_in_a_million: int) -> None:
    """Without a correction they would by 60 ms in ten minutes at 100 parts in a million."""
    device.rate = 1 + parts_in_a_million / 1e6
    apart = []
    for second in range(1, 601):
        (time,) = device.resolve(device.event(1000))
        apart.append(abs(time - second * 1000 * MS))
    assert max(apart) < 1.2e-6 * abs(parts_in_a_million) * ANCHOR_NS
    assert max(apart[60:]) < 0.2 * MS


def test_an_anchor_that_was_passed_late_changes_nothing(device: TickingDevice) -> None:
    """The stream was not ours alone."""
    for second in range(1, 60):
        device.late_ms = 40 if second > 25 else 0
        (time,) = device.resolve(device.event(1000))
        assert time == second * 1000 * MS


def test_whether_an_update_was_skipped_is_asked_with_the_times(device: TickingDevice) -> None:
    """Both ask the device, which is not allowed at any time."""
    (resolved,) = device.clock.resolve([(Kind.OPTIMIZER_END, device.clock(), 0, lambda: True, None)])
    assert resolved[3] is True


def asked_for(device: TickingDevice, monkeypatch: pytest.MonkeyPatch, *events: Event) -> tuple[list[float], int]:
    """Milliseconds of the events, and how many times the driver told for them."""
    told: list[float] = []
    elapsed_time = Mark.elapsed_time

    def counted(mark: Mark, later: Mark) -> float:
        told.append(later.time)
        return elapsed_time(mark, later)

    monkeypatch.setattr(Mark, "elapsed_time", counted)
    return [time / MS for time in device.resolve(*events)], len(told)


def forward(device: TickingDevice, grad: bool, ms: float = 1) -> list[Event]:
    begin = (Kind.FORWARD_BEGIN, device.event(ms)[1], grad, True, 4)
    return [begin, device.event(ms)]


@pytest.mark.parametrize(
    ("grad", "following"), [(False, Kind.BACKWARD_BEGIN), (True, Kind.COMM_END), (True, Kind.DATA_BEGIN)]
)
def test_the_end_of_any_other_forward_is(
    device: TickingDevice, monkeypatch: pytest.MonkeyPatch, grad: bool, following: Kind
) -> None:
    events = [*forward(device, grad), device.event(1, following)]
    assert asked_for(device, monkeypatch, *events) == ([1, 2, 3], 3)


def test_a_forward_whose_end_comes_in_a_later_piece(device: TickingDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, end = forward(device, True)
    backward = device.event(1, Kind.BACKWARD_BEGIN)
    assert device.resolve(begin) == [1 * MS]
    assert asked_for(device, monkeypatch, end, backward) == ([1, 3], 1)
    assert device.resolve(*forward(device, True)) == [4 * MS, 5 * MS]  # nothing is known of what follows


def test_an_anchor_is_read_wherever_it_is(device: TickingDevice) -> None:
    device.rate = 1.0001
    for _ in range(100):
        events = [*forward(device, True, 500), device.event(500, Kind.BACKWARD_BEGIN)]
        times = device.resolve(*events)
    assert abs(times[-1] - round(device.now * MS)) < 0.5 * MS


def test_forwards_whose_ends_were_lost_are_forgotten(device: TickingDevice) -> None:
    kinds = (Kind.FORWARD_BEGIN, Kind.LOST, Kind.FORWARD_BEGIN, Kind.FORWARD_END)
    device.clock.resolve([(kind, device.clock(), True, None, None) for kind in kinds])
    assert device.clock._forwards == []
