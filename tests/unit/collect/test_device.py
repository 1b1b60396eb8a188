"""The device's clock, on events that tick when the test says so."""

from __future__ import annotations

from typing import Any

from ddlprof.collect.device import DeviceClock
from ddlprof.model.events import Event, Kind


class Device:
    """Records stamps in milliseconds; those later than `passed` have not happened yet."""

    def __init__(self) -> None:
        self.now = 0.0
        self.passed = float("inf")
        self.made = 0
        self.capturing = False
        self.clock = DeviceClock(self.make, self.record, lambda: self.capturing)

    def make(self) -> Stamp:
        self.made += 1
        return Stamp(self)

    def record(self, stamp: Stamp) -> None:
        stamp.time = self.now

    def event(self, milliseconds: float = 0, kind: Kind = Kind.FORWARD_END) -> Event:
        self.now += milliseconds
        return (kind, self.clock(), None, None, None)

    def resolve(self, *events: Event) -> list[int]:
        return [time for _, time, *_ in self.clock.resolve(list(events))]


class Stamp:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.time = 0.0

    def query(self) -> bool:
        return self.time <= self.device.passed

    def elapsed_time(self, later: Stamp) -> float:
        assert self.query(), "not ready"
        assert later.query(), "not ready"
        return later.time - self.time


def host(time: int) -> Event:
    return (Kind.FORWARD_BEGIN, time, None, None, None)


def test_the_devices_timeline_goes_on_where_the_hosts_ended() -> None:
    device = Device()
    assert device.resolve(host(100), host(200), device.event(5), device.event(2)) == [100, 200, 200, 2_000_200]
    assert device.resolve(device.event(3)) == [5_000_200]


def test_payload_and_kind_stay() -> None:
    device = Device()
    payload: Any = ("a", "b", "c")
    (resolved,) = device.clock.resolve([(Kind.H2D_BEGIN, device.clock(), *payload)])
    assert resolved == (Kind.H2D_BEGIN, 0, "a", "b", "c")


def test_ready_when_the_last_stamp_has_happened() -> None:
    device = Device()
    chunk = [device.event(1), device.event(1), (Kind.COLLECTIVE, None, None, None, None)]
    device.passed = 1.5
    assert not device.clock.ready(chunk)
    device.passed = 2
    assert device.clock.ready(chunk)
    assert device.clock.ready([host(7)])
    assert device.clock.ready([(Kind.COLLECTIVE, None, None, None, None)])


def test_no_time_is_lost_in_many_short_slices() -> None:
    """The driver's times are 32-bit floats with a resolution of half a microsecond: rounding must not add up."""
    device = Device()
    times = device.resolve(*(device.event(0.0005) for _ in range(10_001)))
    assert times[-1] - times[0] == 10_000 * 500


def test_events_are_used_again() -> None:
    device = Device()
    for _ in range(50):
        device.resolve(device.event(1), device.event(1), device.event(1))
    assert device.made <= 4


def test_an_event_in_use_is_not_recorded_again() -> None:
    device = Device()
    first = [device.event(1), device.event(1)]
    device.resolve(*first)
    waiting = [device.event(1) for _ in range(5)]
    stamps = [stamp for _, stamp, *_ in waiting]
    assert len(set(stamps)) == 5
    assert first[-1][1] not in stamps  # the next slice begins there
    assert device.resolve(*waiting)[-1] == 6_000_000


def test_capture_takes_no_stamps_and_no_time() -> None:
    device = Device()
    before = device.event(1)
    device.capturing = True
    inside = device.event(1)
    device.capturing = False
    assert inside[1] is None
    assert device.resolve(before, inside, device.event(1)) == [0, 0, 2_000_000]


def test_a_stream_that_is_ahead_adds_no_time_twice() -> None:
    """Stamps of several streams need not come in order."""
    device = Device()
    device.resolve(device.event(0))
    on_side_stream = device.event(10)
    device.now = 4
    on_main_stream = device.event(0)
    assert device.resolve(on_side_stream, on_main_stream, device.event(8)) == [10_000_000, 10_000_000, 12_000_000]


def test_whether_an_update_was_skipped_is_asked_with_the_times() -> None:
    """Both ask the device, which is not allowed at any time."""
    device = Device()
    (resolved,) = device.clock.resolve([(Kind.OPTIMIZER_END, device.clock(), 0, lambda: True, None)])
    assert resolved[3] is True
