"""The clock of an accelerator's stream: pooled events, recorded by the hooks, read later by the helper thread.

Nothing here waits for the device. Works on the interface of `torch.cuda` (record, query, elapsed_time).

Times are those of the host's monotonic clock: an *anchor* is an event on a stream of our own, which has nothing to do
and so passes it at once, and the host's time of that moment. What the device counts is added from event to event, as
the driver's difference of two far-apart events is a 32-bit float; another anchor every ten seconds tells how far that
sum is off, which the next ten seconds make good.
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
"""Kinds that end no slice of their own: they take the time of the event before, and no device event."""
ANCHOR_NS = 10_000_000_000
LARGEST_DRIFT = 2e-4
"""Clocks of hosts and devices differ by parts in 100,000; an anchor that says more was passed late."""
_CAPTURING = "capturing"
_STEP_END = int(Kind.OPTIMIZER_END)
_AFTER_FORWARD = (int(Kind.BACKWARD_BEGIN), int(Kind.FORWARD_BEGIN))
"""Up to one of these, the time after a forward with gradients has the class of the forward, and is of the same part."""
_FORWARD_BEGIN, _FORWARD_END = int(Kind.FORWARD_BEGIN), int(Kind.FORWARD_END)


class Stamp:
    """A pooled event, and the timeline that it belongs to."""

    __slots__ = ("anchor", "event", "line", "recorded_ns", "stream")

    def __init__(self, event: Any, line: Timeline) -> None:
        self.event = event
        self.line = line
        self.stream: Any = None
        """On which it was recorded last."""
        self.recorded_ns = 0
        """When, by the host's clock."""
        self.anchor: tuple[Stamp, int] | None = None
        """Another one, and the host's time when it was recorded and passed."""

    def query(self) -> bool:
        """Whether the device has passed it; never makes a context on another device."""
        with self.line.driver.aside():
            return bool(self.event.query())


class Timeline:
    """The time of one device, converted to the host's."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._pool: deque[Stamp] = deque()
        self._last, host_ns = self.anchor()
        self._counted = 0
        """The nanoseconds that the device has counted from the first anchor to the last stamp."""
        self._anchor = self._base = (0, host_ns)
        """Device's and host's nanoseconds: of the last anchor, and from where on `_rate` holds."""
        self._rate = 1.0

    def anchor(self) -> tuple[Stamp, int]:
        """An event that passes at once, and the host's time."""
        stamp = self.take()
        before = time.perf_counter_ns()
        self.driver.record(stamp.event, self.driver.own_stream)
        return stamp, (before + time.perf_counter_ns()) // 2

    def take(self) -> Stamp:
        """A stamp to be recorded."""
        try:
            return self._pool.popleft()
        except IndexError:
            return Stamp(self.driver.make_event(), self)

    def ns(self, stamp: Stamp) -> int:
        """The host's time of a stamp that has passed. It goes back to the pool once it is not counted from."""
        passed = self._since_last(stamp)
        if passed < 0:  # of another stream, which was behind: the next stamp counts from the later of the two
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
        """Takes back a stamp whose time nobody needs, without asking the driver. False: it is needed here."""
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
        """Goes on as fast as the clocks went since the last anchor, and makes up for what they are apart by now."""
        if not stamp.event.query():  # an own stream that was busy after all
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
    """Stamps are recorded events; `resolve` turns a chunk's stamps into nanoseconds once they have happened."""

    def __init__(self, driver: Driver, stream: Any, capturing: Callable[[], bool]) -> None:
        self.stream = stream
        """Whose progress the stamps tell."""
        self.lag_ns: int | None = None
        """The most that this stream was behind the host at an event of the last chunk; None: it is not told."""
        self._blocking = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")
        self._capturing = capturing
        self._line = Timeline(driver)
        self._next_anchor = time.perf_counter_ns() + ANCHOR_NS
        self._now = 0
        self._forwards: list[bool] = []
        """Those that are open, and whether they have gradients."""

    def __call__(self) -> Stamp | None:
        """A stamp for now; None while a graph is being captured."""
        return self.mark(self.stream)

    def mark(self, stream: Any) -> Stamp | None:
        """A stamp for now of another stream of this device."""
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
        """Takes stamps on this stream from now on; `driver` is that of its device, if that is another one."""
        self.stream = stream
        if driver is not None:
            self._line = Timeline(driver)

    def ready(self, chunk: list[Event]) -> bool:
        """Whether the device has passed all the stamps of a chunk: the last one on each of its streams."""
        asked = set()
        for _, stamp, *_ in reversed(chunk):
            if isinstance(stamp, Stamp) and stamp.stream not in asked:
                if not _passed(stamp):
                    return False
                asked.add(stamp.stream)
        return True

    def resolve(self, chunk: list[Event]) -> list[Event]:
        """The chunk with times in nanoseconds; its events go back to the pool. Not to be called during a capture."""
        self.lag_ns = None
        # What is asked goes to a stream that has nothing to do: the training's has work that an answer would wait for.
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
        elif isinstance(a, Stamp):  # an earlier end than the stamp's, if it is known by now
            a = a.line.ns(a) if a.event.query() else True
        if isinstance(stamp, int):  # recorded by the host's clock, before the device was there
            self._now = max(self._now, stamp)
        elif stamp is not None:
            passed = stamp.line.ns(stamp)
            self._now = max(self._now, passed)
            if not self._blocking and stamp.stream == self.stream:
                self.lag_ns = max(passed - stamp.recorded_ns, self.lag_ns or 0)
        if kind == _STEP_END and callable(b):  # whether the update was skipped is on the device
            b = b()
        return (kind, self._now, a, b, c)


def _passed(stamp: Stamp) -> bool:
    try:
        return stamp.query()
    except RuntimeError as error:
        if _CAPTURING in str(error):  # a capture that we do not know of: later
            return False
        raise
