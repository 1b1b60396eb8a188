"""Events that are timed by asking again and again whether the device has passed them.

For devices on which reading the time between two events would make the training wait. A thread of ours asks, in the
order in which the events were recorded, and takes the host's time when it sees that one was passed: at most `POLL_S`
late. It sleeps in between, and ends while there is nothing to wait for.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ddlprof.base.real_time import time

POLL_S = 0.001
_MOST_IDLE_POLLS = 1000


class PolledEvent:
    """An event of the device, and the host's time at which it was seen to be passed."""

    __slots__ = ("event", "passed_ns", "watch")

    def __init__(self, event: Any, watch: EventPoller) -> None:
        self.event = event
        self.watch = watch
        self.passed_ns: int | None = None

    def record(self) -> None:
        """Records it on the device's only stream."""
        self.passed_ns = None
        self.event.record()
        self.watch.add(self)

    def query(self) -> bool:
        """Whether the device was seen to have passed it."""
        return self.passed_ns is not None

    def synchronize(self) -> None:
        """Waits until it is seen to be passed."""
        while self.passed_ns is None:
            time.sleep(POLL_S)

    def elapsed_time(self, later: PolledEvent) -> float:
        """Milliseconds from this event to another."""
        if self.passed_ns is None or later.passed_ns is None:
            raise RuntimeError("the device was not yet seen to have passed both events")
        return (later.passed_ns - self.passed_ns) / 1e6


class EventPoller:
    """Asks for the events of one stream, which are passed in the order in which they were recorded."""

    def __init__(self, make_event: Callable[[], Any]) -> None:
        self._make = make_event
        self._recorded: deque[PolledEvent] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def make_event(self) -> PolledEvent:
        """A new event."""
        return PolledEvent(self._make(), self)

    def add(self, event: PolledEvent) -> None:
        """Takes an event that was recorded just now."""
        self._recorded.append(event)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._poll, name="ddlprof-device", daemon=True)
                    self._thread.start()

    def look(self) -> bool:
        """Asks for the next events. Returns whether any is left, or was there."""
        busy = bool(self._recorded)
        while self._recorded and self._recorded[0].event.query():
            self._recorded.popleft().passed_ns = time.perf_counter_ns()
        return busy

    def _poll(self) -> None:
        sys.settrace(None)  # the script's tracers are not for our thread
        sys.setprofile(None)
        idle = 0
        while True:
            idle = 0 if self.look() else idle + 1
            if idle > _MOST_IDLE_POLLS:
                with self._lock:
                    self._thread = None
                    if not self._recorded:  # what is added from now on starts another thread
                        return
                    self._thread = threading.current_thread()
            time.sleep(POLL_S)
