"""Takes the events from the hooks in the training thread: a time stamp and a list append each, nothing more.

At the end of every step the list changes hands: the helper thread takes it from `chunks` and does the rest.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ddlprof.collect.loss_values import LossValues
from ddlprof.collect.losses import Losses
from ddlprof.collect.process.real_time import time
from ddlprof.collect.process.sampled_cost import SampledCost
from ddlprof.collect.process.thread_clock import ThreadClock
from ddlprof.collect.steps.loop import BEGINS, ENDS, IDLE, LoopWatch
from ddlprof.model.events import Event, Kind, Round

_ROUND = int(Kind.ROUND)
_STEP_END = int(Kind.OPTIMIZER_END)  # an enumeration's attribute is slow to look up
_MARKS = (_STEP_END, _ROUND)
_WAITING = (int(Kind.DATA_BEGIN), int(Kind.BACKWARD_BEGIN))
_BEGINS, _ENDS, _IDLE = 1, 2, 4
_ROLES = bytes((kind in BEGINS) * _BEGINS + (kind in ENDS) * _ENDS + (kind in IDLE) * _IDLE for kind in range(256))
"""What an event means to the watch of the loop, by its kind."""
_CHUNK_EVENTS = 4096
"""A step with more events than this changes hands in parts, so that memory stays bounded."""
_MAX_CHUNKS = 100_000
FIRST_STEPS = 3
"""Whatever is looked at once, as the model and its device, is looked at while there are no more `boundaries`."""


class Recorder:
    """The recorder of a process. `emit` is what hooks get; `chunks` is what the helper thread takes."""

    def __init__(self, clock: Callable[[], Any] | None = None) -> None:
        self.clock = clock or time.perf_counter_ns
        self.device: Any = None
        """The clock, if it is a device's: its stamps are to be resolved."""
        self.active = True
        self.thread = threading.main_thread().ident
        self.chunks: deque[list[Event]] = deque()
        self.emitting = SampledCost(every=32)
        """What events take."""
        self.fetching = SampledCost(every=8)
        """The overhead of looking at fetches and at compiled updates."""
        self.wrapper_ns = 0
        """Cost of a hook outside `emit`, an event; measured once by the helper thread (`wrapper_cost_ns`)."""
        self.unstamped: frozenset[int] = frozenset()
        """Kinds whose time stamp is not taken (device clocks only, see `ddlprof.collect.accelerator.clock`)."""
        self.note: Callable[[str, str], None] = lambda hook, message: None
        """See `RankWriter.note`."""
        self.losses = Losses()
        self.loss_values = LossValues()
        self.at_update: Callable[[int], None] | None = None
        """Called in the training thread after each optimizer update, with their number."""
        self.before_waiting: Callable[[int], None] | None = None
        """Called before the training thread asks for a batch or begins a backward, with the kind."""
        self.in_window: Callable[[], None] | None = None
        """Called at each event of the training thread while a profiler window is open."""
        self.before_update: Callable[[], None] | None = None
        """Called before an update is recorded: events that it emits belong to the step that ends."""
        self.after_backward: Callable[[], None] | None = None
        """Called in the training thread when a backward is over, before it is recorded."""
        self.capture: Callable[[int, Any, Any, Any], bool] | None = None
        """Takes the events while a graph is captured: they happen when it is replayed. False: it is no longer."""
        self.lost = 0
        self.failure: str | None = None
        """Why it stopped recording, if it did: a clock that fails must not fail the training."""
        self.boundaries = 0
        """Optimizer updates so far, of any optimizer; or rounds, where `rounds` says so."""
        self.marks = 0
        """Updates and rounds of any kind so far, whether they end a step or not."""
        self.rounds: Round | None = None
        """The rounds that end steps in a loop whose optimizer is not seen."""
        self.loop = LoopWatch(ThreadClock, time.perf_counter_ns)
        self.spans: deque[tuple[str, int, int]] = deque()
        """What belongs to no event, see `JobSpan`: what, begin and end on the host's clock, from any thread."""
        self._events: list[Event] = []
        self._kinds: set[int] = set()
        self._charged_ns = 0

    def listens(self) -> bool:
        """Whether events of this thread are recorded now."""
        return self.active and threading.get_ident() == self.thread

    def holds(self, kind: int) -> bool:
        """Whether the unfinished step has such an event."""
        return kind in self._kinds

    def emit(self, kind: int, a: Any = None, b: Any = None, c: Any = None, watched: bool = True) -> bool:
        """Records an event of the training thread; False (and nothing) for any other thread.

        Every call in here counts: after a step in which the thread waited, its code is in no cache.
        """
        if watched and threading.get_ident() != self.thread:
            return False
        if not self.active:
            if watched:
                self.loop.close_log()
            return False
        try:
            if self.capture is not None and self.capture(kind, a, b, c):
                return True
            if watched and self.in_window is not None:
                self.in_window()
            if self.before_waiting is not None and kind in _WAITING:
                self.before_waiting(kind)
            cost = self.emitting
            cost.calls += 1
            begin = 0 if cost.calls < cost.next else cost.start()
            over = False
            role = _ROLES[kind] if watched else 0
            if role & _IDLE and self.loop.idle:
                role = 0
            extras = self.loop.before(kind, a) if role & _BEGINS else ()
            if self.before_update is not None and (kind == _STEP_END or (extras and extras[-1][0] == _ROUND)):
                self.before_update()
            for extra in extras:
                over |= self._record(*extra)
            self._events.append((kind, None if kind in self.unstamped else self.clock(), a, b, c))
            self._kinds.add(kind)
            if kind in _MARKS or len(self._events) >= _CHUNK_EVENTS:
                over |= self._recorded(kind, a)
            if role & _ENDS:
                self.loop.after(kind, a)
            if begin:
                cost.end(begin)
            if over and self.at_update is not None:
                self.at_update(self.boundaries)
        except Exception as error:
            self.active = False
            self.failure = f"{type(error).__name__}: {error}"
            self.loop.close_log()
            return False
        return True

    def emit_in_backward(self, kind: int, a: Any = None, b: Any = None, c: Any = None) -> bool:
        """Like `emit`, but also from the threads in which the autograd engine runs while the training thread waits."""
        return self.emit(kind, a, b, c, False)

    def _record(self, kind: int, a: Any) -> bool:
        """What the loop adds. True: a step ended."""
        self._events.append((kind, None if kind in self.unstamped else self.clock(), a, None, None))
        self._kinds.add(kind)
        return self._recorded(kind, a)

    def _recorded(self, kind: int, a: Any) -> bool:
        """Hands over what is complete. True: a step ended, and the list has changed hands."""
        over = False
        if kind in _MARKS:
            self.marks += 1
            over = kind == _STEP_END or a == self.rounds
            if over or not self.boundaries:
                self._hand_over(over)
        elif len(self._events) >= _CHUNK_EVENTS:
            self._hand_over(boundary=False)
        return over

    def use_device(self, clock: Any, unstamped: frozenset[int]) -> None:
        """Changes over to a device's clock, see `DeviceClock`."""
        self.unstamped = unstamped
        self.clock = self.device = clock
        self.loop.gaps = False  # what the host does between two calls, the device need not notice

    # -- the overhead ----------------------------------------------------------------------------------------------

    def charge(self, work: Callable[[], Any]) -> Any:
        """Does some work of ours that is rare or takes long, and adds what it took to the overhead."""
        begin = time.thread_time_ns()
        try:
            return work()
        finally:
            self._charged_ns += time.thread_time_ns() - begin

    @property
    def hook_ns(self) -> int:
        """Processor time of hooks in all steps so far."""
        events = self.emitting
        return events.total_ns + events.calls * self.wrapper_ns + self.fetching.total_ns + self._charged_ns

    @property
    def hook_steps(self) -> int:
        """The number of these steps; 0 as long as `hook_ns` is not known."""
        return self.boundaries if self.emitting.is_known else 0

    # -- changing hands -------------------------------------------------------------------------------------------

    def _hand_over(self, boundary: bool) -> None:
        if len(self.chunks) < _MAX_CHUNKS:
            self.chunks.append(self._events)
        else:  # the helper thread is dead or starved: the training goes on
            self.lost += len(self._events)
        self._events = []
        if boundary:
            self.boundaries += 1
            self._kinds.clear()

    def recent(self) -> list[Event]:
        """The last events of the unfinished step: tells the stack sampler what the training thread is at."""
        return self._events[-256:]

    def take_rest(self) -> list[Event]:
        """The events of the unfinished step; for the end of the run."""
        events, self._events = self._events, []
        return events
