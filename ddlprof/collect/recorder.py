"""The recorder takes the events of the hooks in the training thread: for each, it appends a time stamp to a list.

At the end of every step the list is handed over through `chunks`: the helper thread takes it from there and does the
rest. The code that runs at every event is in `ddlprof.collect.core`; the code that runs rarely is here.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddlprof.base.real_time import time
from ddlprof.collect import core
from ddlprof.collect.collector import CollectorTimes
from ddlprof.collect.drops import Drops
from ddlprof.collect.process.clocks import ThreadClock
from ddlprof.collect.process.overhead import SampledCost, bare_hook, total_ns
from ddlprof.collect.process.worker_lines import WorkerLines
from ddlprof.collect.steps.loop import GapLooks, RecorderLoop
from ddlprof.model.events import Event, FirstSeen, Kind
from ddlprof.model.records import LossValue

VALUES_PER_STRIDE = 256
"""After each 256 values the stride between two recorded updates doubles: 10^9 updates leave some 6,000 values."""
LARGEST = 1e15
"""A loss whose absolute value is larger counts as diverged."""
_NUMBERS: dict[str, Any] = {"torch.float32": ctypes.c_float, "torch.float64": ctypes.c_double}


class TrainingLoss:
    """Records the loss of the training: the scalar tensor on which the script calls `backward`.

    Only losses in the host's memory are read, directly from their address, so that no operation of torch runs and
    nothing waits. A loss on an accelerator would have to be waited for, so it is not read.

    The training thread calls `note`, the helper thread calls `take`."""

    def __init__(self) -> None:
        self.due = 0
        """The number of updates at which the next loss is recorded. Of an update, only the first backward counts."""
        self.scaled: tuple[Any, Any] | None = None
        """Weak references to the last loss that a `GradScaler` has scaled: the scaled and the original tensor."""
        self._stride, self._values_at_stride = 1, 0
        self._values: deque[tuple[int, float | None]] = deque()
        """Update and loss as plain tuples: torch.compile would trace the constructor of `LossValue`."""

    def note(self, roots: Any, update: int) -> None:
        """Records the loss of the backward that begins, if it is a single number in the host's memory."""
        self.due = update + self._stride
        if isinstance(roots, (list, tuple)):
            if len(roots) != 1:
                return
            roots = roots[0]
        value = self._read(roots)
        if value is None:
            return
        is_finite = math.isfinite(value) and abs(value) < LARGEST
        self._values.append((update, value if is_finite else None))
        self._values_at_stride += 1
        if self._values_at_stride == VALUES_PER_STRIDE:
            self._stride, self._values_at_stride = 2 * self._stride, 0

    def take(self) -> list[LossValue]:
        """Returns the values recorded since the last call."""
        values = []
        while self._values:
            values.append(LossValue(*self._values.popleft()))
        return values

    def _read(self, root: Any) -> float | None:
        if self.scaled is not None and self.scaled[0]() is root:
            root = self.scaled[1]()
        kind = _NUMBERS.get(str(getattr(root, "dtype", "")))
        # A subclass may have no memory of its own, or be spread over many machines.
        if kind is None or type(root).__name__ not in ("Tensor", "Parameter") or root.numel() != 1 or not root.is_cpu:
            return None
        address = root.data_ptr()
        return float(kind.from_address(address).value) if address else None


_CHUNK_EVENTS = 4096
MOST_WAITING_BYTES = 256 << 20
EVENT_BYTES = 256
"""What an event takes in memory, with what it holds: about 160 for most, 220 for those of collectives. One with a stamp
of a device takes up to twice as much."""
_MOST_OPTIMIZERS = 1000
_MOST_SPANS = 10_000
_TIMED_EVERY = 32
"""One in 32 events is timed, on average, to estimate the overhead."""
_EVENTS_OF_A_HOOK = 2
FIRST_STEPS = 3
"""The model, its device and other facts that do not change are inspected while `boundaries` is at most this."""

if TYPE_CHECKING:
    from ddlprof.collect.python_core import EventLog as _Core
else:
    _Core = object


class Bookkeeping(_Core):
    """The part of the recorder that does not run at every event, so that it is not in the core's `EventLog`."""

    loop: GapLooks
    new_loop: Callable[..., GapLooks] = RecorderLoop

    def __init__(self, clock: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.clock = clock or time.perf_counter_ns
        self.device: Any = None
        """The clock, if it is that of a device: its time stamps have to be resolved later."""
        self.thread = threading.main_thread().ident or 0
        self.chunk_events, self.most_waiting = _CHUNK_EVENTS, MOST_WAITING_BYTES // EVENT_BYTES
        self.chunks: deque[list[Event]] = deque()
        self._lost: dict[int | None, int] = {}
        self._first_seen: dict[int, FirstSeen] = {}
        self._lost_at: Any = None
        self.loop = self.new_loop(ThreadClock, time.perf_counter_ns)
        self.cost_clock, self.widest_gap = time.thread_time_ns, 2 * _TIMED_EVERY - 1
        self.fetching = SampledCost(every=8)
        """The overhead of measuring fetches of batches and of finding updates in compiled code."""
        self.bare_hook = bare_hook()
        self.note: Callable[[str, str], None] = lambda hook, message: None
        """See `RankWriter.note`."""
        self.record: Callable[[Any], None] = lambda record: None
        """Writes a record that a hook has made, see `RankWriter.context`."""
        self.drops = Drops()
        self.training_loss = TrainingLoss()
        self.worker_lines = WorkerLines()
        self.workers_started = False
        """Whether a loader has started workers that the helper thread has not looked at."""
        self.collector = CollectorTimes()
        self.after_backward: Callable[[], None] | None = None
        """Called in the training thread when a backward has ended, before its end is recorded."""
        self.failure: str | None = None
        """Why the recording has stopped, if it has; an error of a clock does not stop the training."""
        self.spans: deque[tuple[str, int, int]] = deque(maxlen=_MOST_SPANS)
        """Spans that belong to no event (see `JobSpan`), from any thread: kind, begin and end in ns on the host."""
        self.saves_to: str | bytes | None = None
        """The path of the latest checkpoint; None if it was not saved to one."""
        self._charged_ns = 0

    @property
    def unstamped(self) -> frozenset[int]:
        """Kinds of events that get no time stamp (on device clocks only, see `ddlprof.collect.accelerator.clock`)."""
        return frozenset(kind for kind in range(64) if self.unstamped_bits >> kind & 1)

    @unstamped.setter
    def unstamped(self, kinds: frozenset[int]) -> None:
        self.unstamped_bits = sum(1 << kind for kind in kinds)

    def fail(self, error: Exception) -> None:
        self.active = False
        self.failure = f"{type(error).__name__}: {error}"
        self.loop.close_log()

    def use_device(self, clock: Any, unstamped: frozenset[int]) -> None:
        """Switches to the clock of a device, see `DeviceClock`."""
        self.unstamped = unstamped
        self.clock = self.device = clock
        self.most_waiting = MOST_WAITING_BYTES // (2 * EVENT_BYTES)
        self.loop.gaps = False  # a gap on the host need not be one on the device

    # -- the overhead ----------------------------------------------------------------------------------------------

    def charge(self, work: Callable[[], Any]) -> Any:
        """Does some rare work of the profiler, adds its processor time to the overhead, and returns its result."""
        begin = time.thread_time_ns()
        try:
            return work()
        finally:
            self._charged_ns += time.thread_time_ns() - begin

    @property
    def hook_ns(self) -> int:
        """Processor time of hooks in all steps so far, in nanoseconds."""
        events_ns = total_ns(self.timed_ns, self.timed, self.calls)
        hooks_ns = total_ns(self.bare_hooks_ns, self.timed, self.calls) // _EVENTS_OF_A_HOOK
        return events_ns + hooks_ns + self.fetching.total_ns + self._charged_ns

    @property
    def hook_steps(self) -> int:
        """The number of steps that `hook_ns` covers; 0 while it is not known."""
        return self.boundaries if self.timed else 0

    # -- what the helper thread does not take ----------------------------------------------------------------------

    def lose(self, events: list[Event], boundary: bool) -> None:
        """Drops a chunk, and all that follow until the helper thread has taken half of those that wait. At the update
        then, it is told what is missing."""
        self.losing = True
        kind, self._lost_at, optimizer, _, first_seen = events[-1]
        if not boundary:
            return
        ended = optimizer if kind == Kind.OPTIMIZER_END else None
        if ended in self._lost or len(self._lost) < _MOST_OPTIMIZERS:
            self._lost[ended] = self._lost.get(ended, 0) + 1
            if first_seen is not None:
                self._first_seen[optimizer] = first_seen
        if self.handed - self.taken <= self.most_waiting // 2:
            self._tell_lost()

    def _tell_lost(self) -> None:
        event = (int(Kind.LOST), self._lost_at, self._lost, self.marks, self._first_seen)
        self._lost, self._first_seen, self.losing = {}, {}, False
        self._hand_over_now([event])

    def _hand_over_now(self, events: list[Event]) -> None:
        self.handed += len(events)
        self.chunks.append(events)

    def hand_over_rest(self) -> None:
        """Hands over the events of the unfinished step. Called at the end of the run, when no more come."""
        if self.losing:
            self._tell_lost()
        self._hand_over_now(self.take_rest())

    def close_queue(self) -> None:
        """Drops what waits, and hands over nothing any more."""
        self.most_waiting = -1
        self.chunks.clear()

    # -- the unfinished step --------------------------------------------------------------------------------------

    def recent(self) -> list[Event]:
        """The last events of the unfinished step, by which the stack sampler knows what the training thread does."""
        return self.events[-256:]


class Recorder(Bookkeeping, core.EventLog):
    """The recorder of a process. Hooks call `emit`; the helper thread takes `chunks`."""
