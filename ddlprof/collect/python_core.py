"""The code that runs at every event of a training, in Python: `EventLog`, `LoopWatch` and `plain_size`.

`_core.c` does the same in C and runs where it could be built (`ddlprof.collect.core`). Make every change in both files;
`tests/property/test_cores.py` compares them on random events. Code that runs rarely is in classes that derive from
these, in Python only: `ddlprof.collect.recorder.Recorder` and `ddlprof.collect.steps.loop.RecorderLoop`.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from ddlprof.collect.process.overhead import SampledCost
from ddlprof.model.events import Event, IterationStart, Kind

Extra = tuple[int, Any]
"""Kind and payload of an event."""

SMALLEST_GAP_NS = 250_000
"""Shorter gaps count as computing: a loss function, and the interpreter between two calls."""
_LAST_ORDINAL = 16
"""All gaps of a step from the 16th on share this number."""
_MOST_ITEMS = 32
"""A batch with more items is not inspected."""

_DATA_BEGIN, _DATA_END = int(Kind.DATA_BEGIN), int(Kind.DATA_END)  # an enumeration's attribute is slow to look up
_FORWARD_BEGIN, _FORWARD_END = int(Kind.FORWARD_BEGIN), int(Kind.FORWARD_END)
_BACKWARD_BEGIN, _BACKWARD_END = int(Kind.BACKWARD_BEGIN), int(Kind.BACKWARD_END)
_OPTIMIZER_BEGIN, _OPTIMIZER_END = int(Kind.OPTIMIZER_BEGIN), int(Kind.OPTIMIZER_END)
_ZERO_GRAD_BEGIN, _ZERO_GRAD_END = int(Kind.ZERO_GRAD_BEGIN), int(Kind.ZERO_GRAD_END)
_ROUND = int(Kind.ITERATION)

_BEGINS = frozenset((_DATA_BEGIN, _FORWARD_BEGIN, _BACKWARD_BEGIN, _OPTIMIZER_BEGIN, _ZERO_GRAD_BEGIN))
"""Kinds that end a gap or begin a round."""
_ENDS = frozenset((_DATA_END, _FORWARD_END, _BACKWARD_END, _OPTIMIZER_END, _ZERO_GRAD_END))
"""Kinds after which a gap may begin."""
_IDLE = frozenset((_DATA_BEGIN, _DATA_END, _ZERO_GRAD_BEGIN, _ZERO_GRAD_END))
"""Kinds that the loop watch need not see while it is `idle`."""


class LoopWatch:
    """Derives rounds of the loop, and gaps between its phases, from the order of events in the training thread.

    `before` is called ahead of each event of `_BEGINS`, `after` after each of `_ENDS`.
    """

    gaps = True
    """Whether gaps are measured; on an accelerator's timeline they mean nothing."""
    early = False
    """Whether there are gaps before a step's first forward, too: losses are computed from what no hook has seen."""
    idle = True
    """Whether the loop is between two steps, with no open gap and no round due."""
    wall: Callable[[], int]
    cpu: Callable[[], int] | None = None
    """Gives the processor time of the thread in nanoseconds; None until `make_clock` has set it."""
    open_gap: tuple[int, int, tuple[int, bytes]] | None = None
    """The open gap: the kind of event that opened it, the time, and the thread's clocks at that time."""
    _interrupted: int | None = None
    """The kind of event that opened the gap in which a `zero_grad` now runs."""
    ordinal = 0
    looking = False
    updates = look_until = look_next = looks_left = 0
    _in_step = _in_forward = _in_backward = _loader_due = _forward_due = False

    def __init__(self) -> None:
        self._optimizers: set[Any] = set()
        self.blocked_at: set[tuple[int, int]] = set()
        """Gaps in which the thread was or may have been blocked: the event before each, and its number in the step."""

    @abstractmethod
    def make_clock(self) -> None:
        """Sets `cpu`; where the thread has no such clock, sets `gaps` to False instead."""

    @abstractmethod
    def read_waiting(self, kind: int) -> bytes | None:
        """Reads the kernel's text on how long the thread has waited for a processor, before an event opens a gap.

        Where the kernel gives none, returns None and sets `gaps` to False.
        """

    @abstractmethod
    def look(self) -> None:
        """Starts to record torch's operators in the gap that begins."""

    @abstractmethod
    def close_gap(self, kind: int, wall: int) -> list[Extra]:
        """Ends a gap of `wall` nanoseconds that was long or whose operators were recorded; returns its events."""

    @abstractmethod
    def close_log(self) -> Any:
        """Stops recording operators in a gap, and returns them."""

    def before(self, kind: int, a: Any) -> list[Extra]:
        """Returns the events to record before an event that begins something. If a round is among them, it is last."""
        extras: list[Extra] = []
        if kind == _ZERO_GRAD_BEGIN:
            self._interrupted = None if self.open_gap is None else self.open_gap[0]
        if self.open_gap is not None:
            wall = self.wall() - self.open_gap[1]
            if wall < SMALLEST_GAP_NS and not self.looking:
                self.open_gap = None
            else:
                extras = self.close_gap(kind, wall)
        grad = kind == _FORWARD_BEGIN and bool(a)
        due = None
        if kind == _DATA_BEGIN and self._loader_due:
            self._loader_due = self._forward_due = False
            due = IterationStart.LOADER
        elif grad and self._forward_due:
            self._forward_due = False
            due = IterationStart.FORWARD
        if due is not None:
            extras.append((_ROUND, due))
            if not self._optimizers:
                self._end_step()
        if grad or kind == _BACKWARD_BEGIN:
            self._in_step, self.idle = True, False
        if kind == _FORWARD_BEGIN:
            self._in_forward = True  # a whole step may be in it, if it is compiled
        elif kind == _BACKWARD_BEGIN:
            self._in_backward = True
        return extras

    def after(self, kind: int, a: Any = None) -> None:
        """Opens a gap after an event that ends something, or opens again the gap that `zero_grad` interrupted."""
        if kind == _ZERO_GRAD_END:
            if self._interrupted is not None and self.open_gap is None:
                self._begin_gap(self._interrupted)
            return
        if kind == _OPTIMIZER_END:
            self._loader_due = self._forward_due = False
            if len(self._optimizers) < 2:  # whether there is one, and whether there are several, is all that counts
                self._optimizers.add(a)
            self._end_step()
            if self.gaps and (len(self._optimizers) > 1 or self.early):
                self.idle = False
                self._begin_gap(kind)  # another one may follow in the same step, or what the loss is computed from
            return
        if kind == _BACKWARD_END:
            self._loader_due = self._forward_due = True
            self._in_backward = self.idle = False
        elif kind == _FORWARD_END:
            self._in_forward = False
        inside = self._in_forward or self._in_backward
        within = self._in_step or (self.early and kind == _DATA_END)
        if within and not inside and self.gaps and self.open_gap is None:
            self._begin_gap(kind)

    def _end_step(self) -> None:
        """Ends the step after an update, or after a round where there are no updates."""
        self._in_step = self._in_forward = False
        self.open_gap = self._interrupted = None
        if self.looking:
            self.close_log()
        self.ordinal = 0
        self.updates += 1
        self.idle = not (self._loader_due or self._forward_due)

    def _begin_gap(self, kind: int) -> None:
        if self.cpu is None:
            self.make_clock()
            if self.cpu is None:
                return
        if self.ordinal < _LAST_ORDINAL:
            self.ordinal += 1
        cpu_ns, waiting = self.cpu(), b""
        if (kind, self.ordinal) in self.blocked_at:
            read = self.read_waiting(kind)
            if read is None:
                return
            waiting = read
        if self.looks_left > 0 and self.updates < self.look_until and (kind != _OPTIMIZER_END or self.early):
            self.look()
        self.open_gap = kind, self.wall(), (cpu_ns, waiting)


class EventLog:
    """Records the events of the hooks, each with a time stamp, and hands over the list at the end of each step."""

    clock: Callable[[], Any]
    """Gives the time stamps: nanoseconds, or events of a device."""
    loop: LoopWatch
    active = True
    boundaries = 0
    """The number of updates so far, of any optimizer; or of rounds, if `rounds` is set."""
    marks = 0
    """The number of updates and rounds of any kind so far, whether they ended a step or not."""
    handed = 0
    """The number of events that were handed over so far."""
    taken = 0
    """The number of those that the helper thread has taken. Only that thread changes it; the rest of them waits."""
    losing = False
    """Whether what is complete is lost, until the helper thread has caught up."""
    next_update = 0
    """`at_update` is called from this number of updates on."""
    chunk_events: int
    """A step with more events than this is handed over in parts, so that memory stays bounded."""
    most_waiting: int
    """The most events that wait for the helper thread. Chunks for which there is no room are given to `lose`."""
    chunks: deque[list[Event]]
    rounds: IterationStart | None = None
    """The kind of round that ends a step in a loop whose optimizer is not observed."""
    flags: dict[str, Any] | None = None
    flag = ""
    """The key in `flags` that is true while torch.compile traces; nothing is recorded then (`compile.tracing`)."""
    capture: Callable[[int, Any, Any, Any], bool] | None = None
    """Takes the events while a graph is captured, as they happen when it is replayed; False if no capture runs."""
    in_window: Callable[[], None] | None = None
    """Called at each event of the training thread while a profiler window is open."""
    before_waiting: Callable[[int], None] | None = None
    """Called with the kind of event before the training thread asks for a batch or begins a backward."""
    before_update: Callable[[], None] | None = None
    """Called before an update is recorded: events that it emits belong to the step that ends."""
    at_update: Callable[[int], None] | None = None
    """Called in the training thread after each optimizer update, with their number."""
    bare_hook: Callable[[], Any] | None = None
    """A hook without events. It is called and timed after each timed event, to estimate the hooks' own overhead."""
    bare_hooks_ns = 0
    """The nanoseconds that all calls of `bare_hook` have taken; there is one for each of the `timed` events."""
    unstamped_bits = 0
    """One bit for each kind of event that gets no time stamp."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.events: list[Event] = []
        self._kinds = 0
        self._cost = SampledCost(every=1)

    @property
    def calls(self) -> int:
        """The number of events recorded so far."""
        return self._cost.calls

    @property
    def next_timed(self) -> int:
        """The number of the next call that is timed."""
        return self._cost.next

    @property
    def timed(self) -> int:
        """The number of calls that were timed."""
        return self._cost.timed

    @property
    def timed_ns(self) -> int:
        """Nanoseconds that the timed calls took."""
        return self._cost.timed_ns

    @property
    def cost_clock(self) -> Callable[[], int]:
        """The clock by which calls are timed."""
        return self._cost.clock

    @cost_clock.setter
    def cost_clock(self, clock: Callable[[], int]) -> None:
        self._cost.clock = clock

    @property
    def widest_gap(self) -> int:
        """The most calls between two that are timed."""
        return self._cost.widest_gap

    @widest_gap.setter
    def widest_gap(self, calls: int) -> None:
        self._cost.widest_gap = calls

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Stops the recording after an error."""

    @abstractmethod
    def lose(self, events: list[Event], boundary: bool) -> None:
        """Takes a chunk that cannot be handed over. `boundary`: an update or round is the last of its events."""

    def listens(self) -> bool:
        """Whether events of this thread are recorded now."""
        return self.active and threading.get_ident() == self.thread

    def holds(self, kind: int) -> bool:
        """Whether the unfinished step has such an event."""
        return bool(self._kinds >> kind & 1)

    def emit(self, kind: int, a: Any = None, b: Any = None, c: Any = None, watched: bool = True) -> bool:
        """Records an event of the training thread and returns True. In other threads, does nothing and returns False.

        Each function call in here is expensive: after a step in which the thread waited, no code is in a cache.
        """
        if watched and threading.get_ident() != self.thread:
            return False
        loop = self.loop
        if not self.active:
            if watched and loop.looking:
                loop.close_log()
            return False
        if self.flags is not None and self.flags.get(self.flag) is True:
            return False
        try:
            if self.capture is not None and self.capture(kind, a, b, c):
                return True
            if watched and self.in_window is not None:
                self.in_window()
            if self.before_waiting is not None and kind in (_DATA_BEGIN, _BACKWARD_BEGIN):
                self.before_waiting(kind)
            cost = self._cost
            cost.calls += 1
            begin = None if cost.calls < cost.next else cost.start()
            watched = watched and not (loop.idle and kind in _IDLE)
            extras = loop.before(kind, a) if watched and kind in _BEGINS else ()
            over = False
            if self.before_update is not None and (kind == _OPTIMIZER_END or (extras and extras[-1][0] == _ROUND)):
                self.before_update()
            for extra in extras:
                over |= self._record(*extra, None, None)
            over |= self._record(kind, a, b, c)
            if watched and kind in _ENDS:
                loop.after(kind, a)
            if begin is not None:
                now = cost.end(begin)
                if self.bare_hook is not None:
                    self.bare_hook()
                    self.bare_hooks_ns += cost.clock() - now - cost.asking_ns
            if over and self.at_update is not None and self.boundaries >= self.next_update:
                self.at_update(self.boundaries)
        except Exception as error:
            self.fail(error)
            return False
        return True

    def emit_in_backward(self, kind: int, a: Any = None, b: Any = None, c: Any = None) -> bool:
        """Like `emit`, but also for threads of the autograd engine, for which the training thread waits."""
        return self.emit(kind, a, b, c, False)

    def _record(self, kind: int, a: Any, b: Any, c: Any) -> bool:
        """Appends an event, hands over the events if a chunk is complete, and returns whether a step has ended."""
        self.events.append((kind, None if self.unstamped_bits >> kind & 1 else self.clock(), a, b, c))
        self._kinds |= 1 << kind
        if kind in (_OPTIMIZER_END, _ROUND):
            self.marks += 1
            over: bool = kind == _OPTIMIZER_END or a == self.rounds
            if over or not self.boundaries:
                self._hand_over(over)
            return over
        if len(self.events) >= self.chunk_events:
            self._hand_over(boundary=False)
        return False

    def _hand_over(self, boundary: bool) -> None:
        events, self.events = self.events, []
        if boundary:
            self.boundaries += 1
            self._kinds = 0
        if self.losing or self.handed - self.taken >= self.most_waiting:
            self.lose(events, boundary)
        else:
            self.handed += len(events)
            self.chunks.append(events)

    def take_rest(self) -> list[Event]:
        """Removes and returns the events of the unfinished step. Called at the end of the run."""
        events, self.events = self.events, []
        return events


_tensor: Any = None
_modes: Callable[[], int] = int


def set_tensor(tensor: Any, modes: Callable[[], int]) -> None:
    """Gives `plain_size` torch's own tensor class and a function that counts the active torch function modes."""
    global _tensor, _modes
    _tensor, _modes = tensor, modes


def plain_size(batch: Any, /) -> int | None:
    """The number of samples in a batch that consists of plain torch tensors only, as most batches do.

    It is the first dimension of the first tensor that has one. None for other batches, for tensors without a dimension,
    and while a torch function mode is active, because the mode would see the access.
    """
    kind = type(batch)
    parts: Collection[Any] = batch.values() if kind is dict else batch if kind is tuple or kind is list else (batch,)
    if _tensor is None or len(parts) > _MOST_ITEMS or _modes():
        return None
    size = None
    try:
        for part in parts:
            if type(part) is not _tensor or part.is_nested:
                return None
            if size is None and (shape := part.shape):
                size = shape[0]
    except Exception:  # of a kind of tensor that has no shape
        return None
    return size
