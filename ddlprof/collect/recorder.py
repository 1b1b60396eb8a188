"""Takes the events from the hooks in the training thread: a time stamp and a list append each, nothing more.

At the end of every step the list changes hands: the helper thread takes it from `chunks` and does the rest.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ddlprof.model.events import Event, Kind

_STEP_END = int(Kind.OPTIMIZER_END)  # an enumeration's attribute is slow to look up
_CHUNK_EVENTS = 4096
"""A step with more events than this changes hands in parts, so that memory stays bounded."""
_MAX_CHUNKS = 100_000
_TIMED_EVERY = 16
"""In every 16th step the recorder times itself: this is the cost of looking that the report prints."""


class Recorder:
    """One a process. `emit` is what hooks get; `chunks` is what the helper thread takes."""

    def __init__(self, clock: Callable[[], Any] = time.perf_counter_ns) -> None:
        self.clock = clock
        self.active = True
        self.thread = threading.main_thread().ident
        self.chunks: deque[list[Event]] = deque()
        self.hook_ns = 0
        self.hook_steps = 0
        self.wrapper_ns = 0
        """Cost of a hook outside `emit`, an event; measured once by the helper thread (`wrapper_cost_ns`)."""
        self.unstamped: frozenset[int] = frozenset()
        """Kinds whose time stamp is not taken (device clocks only, see `ddlprof.collect.device`)."""
        self.at_update: Callable[[int], None] | None = None
        """Called in the training thread after each optimizer update, with their number."""
        self.before_update: Callable[[], None] | None = None
        """Called there too, before the update is recorded: events that it emits belong to the step that ends."""
        self.lost = 0
        self.boundaries = 0
        """Optimizer updates so far, of any optimizer."""
        self._events: list[Event] = []
        self._timing = False

    def emit(self, kind: int, a: Any = None, b: Any = None, c: Any = None) -> bool:
        """Records an event of the training thread; False (and nothing) for any other thread."""
        if not self.active or threading.get_ident() != self.thread:
            return False
        return self._append(kind, a, b, c)

    def emit_in_backward(self, kind: int, a: Any = None, b: Any = None, c: Any = None) -> bool:
        """Like `emit`, but also from the threads in which the autograd engine runs while the training thread waits."""
        return self.active and self._append(kind, a, b, c)

    def _append(self, kind: int, a: Any, b: Any, c: Any) -> bool:
        timing = self._timing
        begin = time.perf_counter_ns() if timing else 0
        if kind == _STEP_END and self.before_update is not None:
            self.before_update()
        self._events.append((kind, None if kind in self.unstamped else self.clock(), a, b, c))
        if kind == _STEP_END or len(self._events) >= _CHUNK_EVENTS:
            self._hand_over(kind)
        if timing:
            self.hook_ns += time.perf_counter_ns() - begin + self.wrapper_ns
        return True

    def charge(self, nanoseconds: int) -> None:
        """Adds a hook's own work to the cost of looking, where the step is a timed one."""
        if self._timing:
            self.hook_ns += nanoseconds

    def _hand_over(self, kind: int) -> None:
        if len(self.chunks) < _MAX_CHUNKS:
            self.chunks.append(self._events)
        else:  # the helper thread is dead or starved: the training goes on
            self.lost += len(self._events)
        self._events = []
        if kind == _STEP_END:
            self.hook_steps += self._timing
            self.boundaries += 1
            self._timing = self.boundaries % _TIMED_EVERY == 0
            if self.at_update is not None:
                self.at_update(self.boundaries)

    def recent(self) -> list[Event]:
        """The last events of the unfinished step: tells the stack sampler what the training thread is at."""
        return self._events[-256:]

    def take_rest(self) -> list[Event]:
        """The events of the unfinished step; for the end of the run."""
        events, self._events = self._events, []
        return events
