"""What runs at every event of a training, in Python: `EventLog`, `LoopWatch` and `plain_size`.

`_core.c` has the same in C, and is what runs where it could be built (`ddlprof.collect.core`); whatever is changed here
is changed there. `tests/property/test_cores.py` compares the two on random events. What is rare is in the classes that
are made of these, in Python only: `ddlprof.collect.recorder.Recorder` and `ddlprof.collect.steps.loop.LoopWatch`.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from ddlprof.collect.process.overhead import SampledCost
from ddlprof.model.events import Event, Kind, Round

Extra = tuple[int, Any]
"""Kind and payload of an event."""

SMALLEST_GAP_NS = 250_000
"""Shorter gaps are computing: a loss function, and the interpreter between two calls."""
_LAST_ORDINAL = 16
"""Gaps of a step after this many are taken for alike."""
_MOST_ITEMS = 32
"""The most items of a batch that are looked at."""

_DATA_BEGIN, _DATA_END = int(Kind.DATA_BEGIN), int(Kind.DATA_END)  # an enumeration's attribute is slow to look up
_FORWARD_BEGIN, _FORWARD_END = int(Kind.FORWARD_BEGIN), int(Kind.FORWARD_END)
_BACKWARD_BEGIN, _BACKWARD_END = int(Kind.BACKWARD_BEGIN), int(Kind.BACKWARD_END)
_OPTIMIZER_BEGIN, _OPTIMIZER_END = int(Kind.OPTIMIZER_BEGIN), int(Kind.OPTIMIZER_END)
_ZERO_GRAD_BEGIN, _ZERO_GRAD_END = int(Kind.ZERO_GRAD_BEGIN), int(Kind.ZERO_GRAD_END)
_ROUND = int(Kind.ROUND)

_BEGINS = frozenset((_DATA_BEGIN, _FORWARD_BEGIN, _BACKWARD_BEGIN, _OPTIMIZER_BEGIN, _ZERO_GRAD_BEGIN))
"""Kinds that end a gap or begin a round."""
_ENDS = frozenset((_DATA_END, _FORWARD_END, _BACKWARD_END, _OPTIMIZER_END, _ZERO_GRAD_END))
"""Kinds after which a gap may begin."""
_IDLE = frozenset((_DATA_BEGIN, _DATA_END, _ZERO_GRAD_BEGIN, _ZERO_GRAD_END))
"""Of these, those that mean nothing while the watch is `idle`: it need not be called."""


class LoopWatch:
    """What the order of events says: rounds of the loop, and gaps between its phases. In the training thread only.

    `before` is called ahead of each event of `_BEGINS`, `after` after each of `_ENDS`.
    """

    gaps = True
    """Whether gaps are looked at: on an accelerator's timeline they say nothing."""
    idle = True
    """Between two steps: no gap is open, and no round is due."""
    wall: Callable[[], int]
    cpu: Callable[[], int] | None = None
    """Processor time of the thread; set by `make_clock`, None before."""
    open_gap: tuple[int, int, tuple[int, bytes]] | None = None
    """The gap that is open: what opened it, when, and the clocks of the thread then."""
    _interrupted: int | None = None
    """What opened the gap in which a `zero_grad` is under way."""
    ordinal = 0
    looking = False
    updates = look_until = look_next = looks_left = 0
    _in_step = _in_forward = _in_backward = _loader_due = _forward_due = False

    def __init__(self) -> None:
        self._optimizers: set[Any] = set()
        self.blocked_at: set[tuple[int, int]] = set()
        """Gaps, by the event before them and their number in the step, in which the thread did not just compute."""

    @abstractmethod
    def make_clock(self) -> None:
        """Sets `cpu`, or `gaps` to False."""

    @abstractmethod
    def read_waiting(self, kind: int) -> bytes | None:
        """Before a gap that such an event opens: what the kernel says of the thread's waiting for a processor.

        None, and `gaps` False, where it does not.
        """

    @abstractmethod
    def look(self) -> None:
        """Begins to look into the gap that begins."""

    @abstractmethod
    def close_gap(self, kind: int, wall: int) -> list[Extra]:
        """Ends a gap that took so long, or was looked into."""

    @abstractmethod
    def close_log(self) -> Any:
        """Ends a look into a gap."""

    def before(self, kind: int, a: Any) -> list[Extra]:
        """What is to be recorded before an event that begins something; a round comes last."""
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
            due = Round.LOADER
        elif grad and self._forward_due:
            self._forward_due = False
            due = Round.FORWARD
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
        """Runs after an event that ends something a gap may begin; one that was interrupted goes on."""
        if kind == _ZERO_GRAD_END:
            if self._interrupted is not None and self.open_gap is None:
                self._begin_gap(self._interrupted)
            return
        if kind == _OPTIMIZER_END:
            self._loader_due = self._forward_due = False
            self._optimizers.add(a)
            self._end_step()
            if self.gaps and len(self._optimizers) > 1:
                self.idle = False
                self._begin_gap(kind)  # another one may follow in the same step
            return
        if kind == _BACKWARD_END:
            self._loader_due = self._forward_due = True
            self._in_backward = self.idle = False
        elif kind == _FORWARD_END:
            self._in_forward = False
        inside = self._in_forward or self._in_backward
        if self._in_step and not inside and self.gaps and self.open_gap is None:
            self._begin_gap(kind)

    def _end_step(self) -> None:
        """Ends the step after an update, or a round that is taken for one."""
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
        if self.looks_left > 0 and self.updates < self.look_until and kind != _OPTIMIZER_END:
            self.look()
        self.open_gap = kind, self.wall(), (cpu_ns, waiting)


class EventLog:
    """Takes the events from the hooks, each with a time stamp; at the end of a step its list of them changes hands."""

    clock: Callable[[], Any]
    """What gives the time stamps: nanoseconds, or a device's events."""
    loop: LoopWatch
    active = True
    boundaries = 0
    """Optimizer updates so far, of any optimizer; or rounds, where `rounds` says so."""
    marks = 0
    """Updates and rounds of any kind so far, whether they end a step or not."""
    lost = 0
    """How many events were lost, as nobody took them."""
    next_update = 0
    """The number of updates from which on `at_update` is called."""
    chunk_events: int
    """A step with more events than this changes hands in parts, so that memory stays bounded."""
    most_chunks: int
    chunks: deque[list[Event]]
    rounds: Round | None = None
    """The rounds that end steps in a loop whose optimizer is not seen."""
    flags: dict[str, Any] | None = None
    flag = ""
    """The name of one of `flags` that, while it is true, keeps everything from being recorded (`compile.tracing`)."""
    capture: Callable[[int, Any, Any, Any], bool] | None = None
    """Takes the events while a graph is captured: they happen when it is replayed. False: it is no longer."""
    in_window: Callable[[], None] | None = None
    """Called at each event of the training thread while a profiler window is open."""
    before_waiting: Callable[[int], None] | None = None
    """Called before the training thread asks for a batch or begins a backward, with the kind."""
    before_update: Callable[[], None] | None = None
    """Called before an update is recorded: events that it emits belong to the step that ends."""
    at_update: Callable[[int], None] | None = None
    """Called in the training thread after each optimizer update, with their number."""
    bare_hook: Callable[[], Any] | None = None
    """Called where an event was timed, and timed as well: what hooks take besides their events."""
    bare_hooks_ns = 0
    """What it took so far: as often as calls were `timed`."""
    unstamped_bits = 0
    """A bit for each kind whose time stamp is not taken."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.events: list[Event] = []
        self._kinds = 0
        self._cost = SampledCost(every=1)

    @property
    def calls(self) -> int:
        """How many events were recorded."""
        return self._cost.calls

    @property
    def next_timed(self) -> int:
        """The number of the call whose cost is taken next."""
        return self._cost.next

    @property
    def timed(self) -> int:
        """How many calls were timed."""
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
        """The most calls between two whose cost is taken."""
        return self._cost.widest_gap

    @widest_gap.setter
    def widest_gap(self, calls: int) -> None:
        self._cost.widest_gap = calls

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Called when something raised: nothing more is recorded."""

    def listens(self) -> bool:
        """Whether events of this thread are recorded now."""
        return self.active and threading.get_ident() == self.thread

    def holds(self, kind: int) -> bool:
        """Whether the unfinished step has such an event."""
        return bool(self._kinds >> kind & 1)

    def emit(self, kind: int, a: Any = None, b: Any = None, c: Any = None, watched: bool = True) -> bool:
        """Records an event of the training thread; False (and nothing) for any other thread.

        Every call in here counts: after a step in which the thread waited, its code is in no cache.
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
        """Like `emit`, but also from the threads in which the autograd engine runs while the training thread waits."""
        return self.emit(kind, a, b, c, False)

    def _record(self, kind: int, a: Any, b: Any, c: Any) -> bool:
        """Appends an event, and hands over what is complete. True: a step ended."""
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
        if len(self.chunks) < self.most_chunks:
            self.chunks.append(self.events)
        else:  # the helper thread is dead or starved: the training goes on
            self.lost += len(self.events)
        self.events = []
        if boundary:
            self.boundaries += 1
            self._kinds = 0

    def take_rest(self) -> list[Event]:
        """The events of the unfinished step; for the end of the run."""
        events, self.events = self.events, []
        return events


_tensor: Any = None
_modes: Callable[[], int] = int


def set_tensor(tensor: Any, modes: Callable[[], int]) -> None:
    """Says what torch's own class of tensors is, and what counts the function modes that are on, for `plain_size`."""
    global _tensor, _modes
    _tensor, _modes = tensor, modes


def plain_size(batch: Any, /) -> int | None:
    """The first dimension of a batch of nothing but torch's own tensors, as most are.

    None where it is another one, where a mode would hear what is asked of them, or where they have no dimension.
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
