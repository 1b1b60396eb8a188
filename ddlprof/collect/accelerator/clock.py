"""The clock of an accelerator's stream: pooled events, recorded by the hooks, read later by the helper thread.

Nothing here waits for the device, but once, when it is found. It uses the interface of `torch.cuda` (record, query,
synchronize, elapsed_time).

Times are converted to the host's monotonic clock. An *anchor* is an event on an idle stream of our own, which the
device passes at once, together with the host's time of that moment. Durations that the device counts are added up from
event to event, because the driver returns the difference of two events as a 32-bit float, which is inexact for distant
events. Every ten seconds another anchor shows how far the sum is off; the next ten seconds correct it.

With `CUDA_DEVICE_MAX_CONNECTIONS=1` the streams of a device share a queue, and no stream is idle while the training is
ahead of the device. The first anchor is therefore recorded after a wait for an event on our stream; later ones that the
device passes late are not believed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from ddlprof.base.real_time import time
from ddlprof.collect.accelerator.protocol import Driver
from ddlprof.model.events import Event, Kind

UNSTAMPED = frozenset((Kind.EPOCH, Kind.COLLECTIVE, Kind.COMPILE, Kind.TRACED, Kind.UNSEEN))
"""Kinds of events that end no interval of their own. They get the time of the event before and no device event."""
ANCHOR_NS = 10_000_000_000
LARGEST_DRIFT = 2e-4
"""The largest relative difference of clocks that is believed. Real ones are parts in 100,000; a larger one means that
the device passed the anchor late."""
NEVER = 2**63
"""Later than any time. A device with one stream has no idle stream on which another anchor could be recorded."""
_CAPTURING = "capturing"
_STEP_END = int(Kind.OPTIMIZER_END)
_AFTER_FORWARD = (int(Kind.BACKWARD_BEGIN), int(Kind.FORWARD_BEGIN))
"""If one of these follows a forward with gradients, no time is needed for the end of the forward: the time until then
has the same class and part."""
_FORWARD_BEGIN, _FORWARD_END, _LOST = int(Kind.FORWARD_BEGIN), int(Kind.FORWARD_END), int(Kind.LOST)


class Stamp:
    """A device event from the pool, and the timeline that it belongs to."""

    __slots__ = ("anchor", "event", "line", "recorded_ns", "stream")

    def __init__(self, event: Any, line: Timeline) -> None:
        self.event = event
        self.line = line
        self.stream: Any = None
        """The stream on which it was recorded last."""
        self.recorded_ns = 0
        """The host's time of that recording, in ns."""
        self.anchor: tuple[Stamp, int] | None = None
        """An anchor that was recorded with this stamp, and the host's time of that."""

    def query(self) -> bool:
        """Whether the device has passed it. Never creates a CUDA context on another device."""
        with self.line.driver.aside():
            return bool(self.event.query())


class Timeline:
    """Converts the time of one device to the host's clock."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._pool: deque[Stamp] = deque()
        if driver.own_stream is not None:
            self._await_device()
        self._last, host_ns = self.anchor()
        self._counted = 0
        """The nanoseconds that the device has counted from the first anchor to the last stamp."""
        self._anchor = self._base = (0, host_ns)
        """Pairs of device's and host's nanoseconds: of the last anchor, and of the moment from which `_rate` is
        used."""
        self._rate = 1.0

    def anchor(self) -> tuple[Stamp, int]:
        """Records an event on the idle stream; returns it and the host's time in ns."""
        stamp = self.take()
        before = time.perf_counter_ns()
        self.driver.record(stamp.event, self.driver.own_stream)
        return stamp, (before + time.perf_counter_ns()) // 2

    def _await_device(self) -> None:
        """Waits until the device has nothing else to do before it passes an event on the idle stream."""
        stamp, _ = self.anchor()
        with self.driver.aside():
            stamp.event.synchronize()
        self._pool.append(stamp)

    def take(self) -> Stamp:
        """A stamp from the pool, or a new one."""
        try:
            return self._pool.popleft()
        except IndexError:
            return Stamp(self.driver.make_event(), self)

    def ns(self, stamp: Stamp) -> int:
        """The host's time of a stamp that the device has passed, in ns. Returns the stamp before it to the pool."""
        passed = self._since_last(stamp)
        if passed < 0:  # of another stream, which was behind; counting goes on from the later stamp
            self._pool.append(stamp)
            return self._host_ns(self._counted + passed)
        self._counted += passed
        self._pool.append(self._last)
        self._last = stamp
        anchor, stamp.anchor = stamp.anchor, None
        if anchor is not None:
            self._correct(*anchor)
        return self._host_ns(self._counted)

    def spare(self, stamp: Stamp) -> bool:
        """Returns a stamp to the pool without asking the driver for its time; False if its anchor is still needed."""
        if stamp.anchor is not None:
            return False
        self._pool.append(stamp)
        return True

    def _since_last(self, stamp: Stamp) -> int:
        milliseconds: float = self._last.event.elapsed_time(stamp.event)
        return round(milliseconds * 1e6)

    def _host_ns(self, counted: int) -> int:
        since, host_ns = self._base
        return host_ns + round((counted - since) * self._rate)

    def _correct(self, stamp: Stamp, host_ns: int) -> None:
        """Sets the rate to that between the last two anchors, plus what corrects the error until the next one."""
        if not stamp.event.query():  # the idle stream was busy after all
            return
        there, (last_there, last_host_ns) = self._counted + self._since_last(stamp), self._anchor
        self._pool.append(stamp)
        rate = (host_ns - last_host_ns) / max(1, there - last_there)
        if abs(rate - 1) > LARGEST_DRIFT:
            return
        apart = (host_ns - self._host_ns(there)) / ANCHOR_NS
        self._anchor, self._base = (there, host_ns), (self._counted, self._host_ns(self._counted))
        self._rate = rate + min(LARGEST_DRIFT, max(-LARGEST_DRIFT, apart))


class DeviceClock:
    """Records stamps, and later converts the stamps of a list of events into nanoseconds with `resolve`."""

    def __init__(self, driver: Driver, stream: Any, capturing: Callable[[], bool]) -> None:
        self.stream = stream
        """The stream on which stamps are recorded."""
        self.lag_ns: int | None = None
        """How far this stream was behind the host at most at an event of the last chunk, in ns; None: not known."""
        self._blocking = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")
        self._capturing = capturing
        self._line = Timeline(driver)
        self._next_anchor = time.perf_counter_ns() + ANCHOR_NS if driver.own_stream is not None else NEVER
        self._now = 0
        self._forwards: list[bool] = []
        """The forwards that have not ended, outermost first: whether each has gradients."""

    def __call__(self) -> Stamp | None:
        """Records a stamp on the clock's stream; None while a graph is being captured."""
        return self.mark(self.stream)

    def mark(self, stream: Any) -> Stamp | None:
        """Records a stamp on another stream of this device; None while a graph is being captured."""
        if self._capturing():
            return None
        stamp = self._line.take()
        stamp.stream = stream
        stamp.line.driver.record(stamp.event, stream)
        stamp.recorded_ns = now = time.perf_counter_ns()
        if now >= self._next_anchor:
            self._next_anchor = now + ANCHOR_NS
            stamp.anchor = self._line.anchor()
        return stamp

    def follow(self, stream: Any, driver: Driver | None = None) -> None:
        """Records stamps on `stream` from now on. `driver`: that of its device if the device changes."""
        self.stream = stream
        if driver is not None:
            self._line = Timeline(driver)

    def ready(self, chunk: list[Event]) -> bool:
        """Whether the device has passed all stamps of a list of events. Asks for the last stamp of each stream."""
        asked = set()
        for _, stamp, *_ in reversed(chunk):
            if isinstance(stamp, Stamp) and stamp.stream not in asked:
                if not _passed(stamp):
                    return False
                asked.add(stamp.stream)
        return True

    def resolve(self, chunk: list[Event]) -> list[Event]:
        """The events with times in ns instead of stamps. Returns stamps to the pool.

        Must not be called during a capture.
        """
        self.lag_ns = None
        # queries go to an idle stream: on the training's stream the answer would wait for its work
        with self._line.driver.aside():
            following = (kind for kind, *_ in chunk[1:])
            return [self._resolved(*event, next(following, None)) for event in chunk]

    def _resolved(self, kind: int, stamp: Any, a: Any, b: Any, c: Any, following: int | None) -> Event:
        if kind == _FORWARD_BEGIN:
            self._forwards.append(bool(a))
        elif kind == _FORWARD_END:
            ends_no_slice = self._forwards == [True] and following in _AFTER_FORWARD
            del self._forwards[-1:]
            if ends_no_slice and isinstance(stamp, Stamp) and stamp.line.spare(stamp):
                return (kind, self._now, a, b, c)
        elif kind == _LOST:  # ends of forwards, maybe
            self._forwards.clear()
        elif isinstance(a, Stamp):  # an earlier end than the stamp's, if already known
            a = a.line.ns(a) if a.event.query() else True
        if isinstance(stamp, int):  # recorded by the host's clock before the device was used
            self._now = max(self._now, stamp)
        elif stamp is not None:
            passed = stamp.line.ns(stamp)
            self._now = max(self._now, passed)
            if not self._blocking and stamp.stream == self.stream:
                self.lag_ns = max(passed - stamp.recorded_ns, self.lag_ns or 0)
        if kind == _STEP_END and callable(b):  # whether the update was skipped is known on the device only
            b = b()
        return (kind, self._now, a, b, c)


def _passed(stamp: Stamp) -> bool:
    try:
        return stamp.query()
    except RuntimeError as error:
        if _CAPTURING in str(error):  # a capture that we do not know of: try later
            return False
        raise
