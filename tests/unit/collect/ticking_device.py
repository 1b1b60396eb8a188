"""A device whose time goes on when a test says so."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ddlprof.base import real_time
from ddlprof.collect.accelerator.clock import DeviceClock
from ddlprof.model.events import Event, Kind

START_NS = 1_000_000_000


class Mark:
    """An event of the device, as `torch.cuda.Event`; milliseconds."""

    def __init__(self, device: TickingDevice) -> None:
        self.device = device
        self.time = 0.0

    def query(self) -> bool:
        return self.time <= self.device.passed

    def synchronize(self) -> None:
        self.device.now = max(self.device.now, self.time / self.device.rate)

    def elapsed_time(self, later: Mark) -> float:
        assert self.query(), "not ready"
        assert later.query(), "not ready"
        return later.time - self.time


class TickingDevice:
    """Its `now` is the host's time, too, `START_NS` earlier; events later than `passed` have not happened yet."""

    own_stream = "own"

    def __init__(self, monkeypatch: Any = None) -> None:
        self.now = 0.0
        self.passed = float("inf")
        self.rate = 1.0
        """Of the device's clock to the host's."""
        self.made = 0
        self.late_ms = 0.0
        """So much later the device passes what is recorded on the stream of our own."""
        self.capturing = False
        if monkeypatch is not None:
            monkeypatch.setattr(real_time.time, "perf_counter_ns", self.host_ns)
        self.clock = DeviceClock(self, "training", lambda: self.capturing)

    def host_ns(self) -> int:
        return START_NS + round(self.now * 1e6)

    def make_event(self) -> Mark:
        self.made += 1
        return Mark(self)

    def record(self, mark: Mark, stream: Any) -> None:
        mark.time = self.now * self.rate + (self.late_ms if stream == self.own_stream else 0)

    def aside(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def event(self, milliseconds: float = 0, kind: Kind = Kind.FORWARD_END) -> Event:
        self.now += milliseconds
        return (kind, self.clock(), None, None, None)

    def at(self, nanoseconds: int) -> Any:
        """A stamp at this time of its own."""
        self.now = nanoseconds / 1e6
        return self.clock()

    def resolve(self, *events: Event) -> list[int]:
        return [time - START_NS for _, time, *_ in self.clock.resolve(list(events))]
