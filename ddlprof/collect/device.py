"""The clock of an accelerator's stream: pooled events, recorded by the hooks, read later by the helper thread.

Nothing here synchronises. Works on the interface of `torch.cuda` (record, query, elapsed_time), which the tests fake.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ddlprof.model.events import Event, Kind

UNSTAMPED = frozenset((Kind.EPOCH, Kind.BACKWARD_BEGIN, Kind.COLLECTIVE, Kind.COMPILE, Kind.TRACED))
"""Kinds that end no slice of their own: they take the time of the event before, and no device event."""


class DeviceClock:
    """Stamps are recorded events; `resolve` turns a chunk's stamps into nanoseconds once they have happened.

    The device's timeline goes on where the host's ended.
    Times are accumulated from event to event, as the driver's difference of two far-apart events is a 32-bit float.
    """

    def __init__(
        self,
        make_event: Callable[[], Any],
        record: Callable[[Any], None],
        capturing: Callable[[], bool],
    ) -> None:
        self._make_event = make_event
        self._record = record
        self._capturing = capturing
        self._pool: deque[Any] = deque()
        self._last: Any = None
        self._now = 0
        self.stream: Any = None

    def __call__(self) -> Any:
        """A stamp for now, on the current stream; None while a graph is being captured."""
        if self._capturing():
            return None
        try:
            event = self._pool.popleft()
        except IndexError:
            event = self._make_event()
        self._record(event)
        return event

    def mark(self, stream: Any) -> Any:
        """An event on another stream, for the payload of COMM_END."""
        event = self._pool.popleft() if self._pool else self._make_event()
        event.record(stream)
        return event

    def ready(self, chunk: list[Event]) -> bool:
        """Whether the device has passed all the stamps of a chunk."""
        for _, stamp, *_ in reversed(chunk):
            if stamp is not None:
                return isinstance(stamp, int) or bool(stamp.query())
        return True

    def resolve(self, chunk: list[Event]) -> list[Event]:
        """The chunk with times in nanoseconds; its events go back to the pool. Not to be called during a capture."""
        resolved: list[Event] = []
        for kind, stamp, a, b, c in chunk:
            if isinstance(stamp, int):  # recorded by the host's clock, before the device was there
                self._now = stamp
            elif stamp is not None:
                self._advance(stamp)
            if kind == Kind.OPTIMIZER_END and callable(b):  # whether the update was skipped is on the device
                b = b()
            if kind == Kind.COMM_END and hasattr(a, "elapsed_time"):
                a = self._time_of(a)
            resolved.append((kind, self._now, a, b, c))
        return resolved

    def _time_of(self, event: Any) -> Any:
        """Of one on another stream; True if it is not known."""
        if self._last is None or not event.query():
            return True
        time = self._now + round(self._last.elapsed_time(event) * 1e6)
        self._pool.append(event)
        return time

    def _advance(self, stamp: Any) -> None:
        passed = 0 if self._last is None else round(self._last.elapsed_time(stamp) * 1e6)
        if passed < 0:  # of another stream, which was ahead: the next stamp counts from the later of the two
            self._pool.append(stamp)
            return
        self._now += passed
        if self._last is not None:
            self._pool.append(self._last)
        self._last = stamp


def cuda_clock(torch: Any) -> DeviceClock:
    """The clock of the CUDA (or ROCm) stream that is current now: the one that computes, whoever stamps later."""
    stream = torch.cuda.current_stream()
    unhooked = torch.cuda.Event.record

    def record(event: Any) -> None:
        unhooked(event, stream)

    clock = DeviceClock(lambda: torch.cuda.Event(enable_timing=True), record, torch.cuda.is_current_stream_capturing)
    clock.stream = stream
    return clock
