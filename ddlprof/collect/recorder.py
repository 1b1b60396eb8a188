"""Takes the events from the hooks in the training thread: a time stamp and a list append each, nothing more.

At the end of every step the list changes hands: the helper thread takes it from `chunks` and does the rest. What
happens at every event is in `ddlprof.collect.core`; here is the rest of what a process records.
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
from ddlprof.collect.drops import Drops
from ddlprof.collect.process.clocks import ThreadClock
from ddlprof.collect.process.overhead import SampledCost, bare_hook, total_ns
from ddlprof.collect.steps.loop import GapLooks, LoopWatch
from ddlprof.model.events import Event
from ddlprof.model.records import LossValue

AT_STRIDE = 256
"""After so many values, every second one is left out from then on: a run of 10^9 updates keeps some 6,000."""
LARGEST = 1e15
"""A loss that is larger has diverged."""
_NUMBERS: dict[str, Any] = {"torch.float32": ctypes.c_float, "torch.float64": ctypes.c_double}


class TrainingLoss:
    """The loss of the training, where it can be seen without the script's help: what `backward` is called on.

    Only of tensors in the host's memory, whose number is read as it lies there: no operation of torch runs, so nothing
    that watches operations sees it, and nothing is waited for. A loss on an accelerator would have to be waited for,
    and is not read.

    `note` belongs to the training thread, `take` to the helper thread."""

    def __init__(self) -> None:
        self.due = 0
        """The number of updates from which on the next one is noted; of an update the first backward only."""
        self.scaled: tuple[Any, Any] | None = None
        """Weak references to what a `GradScaler` made last, and to what it made it of."""
        self._stride, self._at_stride = 1, 0
        self._noted: deque[tuple[int, float | None]] = deque()
        """What becomes `LossValue`, whose constructor torch.compile would look at in the training thread."""

    def note(self, roots: Any, update: int) -> None:
        """Notes the loss of the backward that begins, if that is a number in the host's memory."""
        self.due = update + self._stride
        if isinstance(roots, (list, tuple)):
            if len(roots) != 1:
                return
            roots = roots[0]
        value = self._read(roots)
        if value is None:
            return
        is_finite = math.isfinite(value) and abs(value) < LARGEST
        self._noted.append((update, value if is_finite else None))
        self._at_stride += 1
        if self._at_stride == AT_STRIDE:
            self._stride, self._at_stride = 2 * self._stride, 0

    def take(self) -> list[LossValue]:
        """The values since the last call."""
        values = []
        while self._noted:
            values.append(LossValue(*self._noted.popleft()))
        return values

    def _read(self, root: Any) -> float | None:
        if self.scaled is not None and self.scaled[0]() is root:
            root = self.scaled[1]()
        kind = _NUMBERS.get(str(getattr(root, "dtype", "")))
        # A subclass may be anything, as a tensor without memory or one of many machines.
        if kind is None or type(root).__name__ not in ("Tensor", "Parameter") or root.numel() != 1 or not root.is_cpu:
            return None
        address = root.data_ptr()
        return float(kind.from_address(address).value) if address else None


_CHUNK_EVENTS = 4096
_MAX_CHUNKS = 100_000
_TIMED_EVERY = 32
"""One of so many events is timed, on average."""
_EVENTS_OF_A_HOOK = 2
FIRST_STEPS = 3
"""Whatever is looked at once, as the model and its device, is looked at while there are no more `boundaries`."""

if TYPE_CHECKING:
    from ddlprof.collect.python_core import EventLog as _Core
else:
    _Core = object


class Bookkeeping(_Core):
    """What `EventLog` of a core does not do at every event."""

    loop: GapLooks
    new_loop: Callable[..., GapLooks] = LoopWatch

    def __init__(self, clock: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.clock = clock or time.perf_counter_ns
        self.device: Any = None
        """The clock, if it is a device's: its stamps are to be resolved."""
        self.thread = threading.main_thread().ident or 0
        self.chunk_events, self.most_chunks = _CHUNK_EVENTS, _MAX_CHUNKS
        self.chunks: deque[list[Event]] = deque()
        self.loop = self.new_loop(ThreadClock, time.perf_counter_ns)
        self.cost_clock, self.widest_gap = time.thread_time_ns, 2 * _TIMED_EVERY - 1
        self.fetching = SampledCost(every=8)
        """The overhead of looking at fetches and at compiled updates."""
        self.bare_hook = bare_hook()
        self.note: Callable[[str, str], None] = lambda hook, message: None
        """See `RankWriter.note`."""
        self.drops = Drops()
        self.training_loss = TrainingLoss()
        self.after_backward: Callable[[], None] | None = None
        """Called in the training thread when a backward is over, before it is recorded."""
        self.failure: str | None = None
        """Why it stopped recording, if it did: a clock that fails must not fail the training."""
        self.spans: deque[tuple[str, int, int]] = deque()
        """What belongs to no event, see `JobSpan`: what, begin and end on the host's clock, from any thread."""
        self._charged_ns = 0

    @property
    def unstamped(self) -> frozenset[int]:
        """Kinds whose time stamp is not taken (device clocks only, see `ddlprof.collect.accelerator.clock`)."""
        return frozenset(kind for kind in range(64) if self.unstamped_bits >> kind & 1)

    @unstamped.setter
    def unstamped(self, kinds: frozenset[int]) -> None:
        self.unstamped_bits = sum(1 << kind for kind in kinds)

    def fail(self, error: Exception) -> None:
        self.active = False
        self.failure = f"{type(error).__name__}: {error}"
        self.loop.close_log()

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
        """Processor time of hooks in all steps so far, in nanoseconds."""
        events_ns = total_ns(self.timed_ns, self.timed, self.calls)
        hooks_ns = total_ns(self.bare_hooks_ns, self.timed, self.calls) // _EVENTS_OF_A_HOOK
        return events_ns + hooks_ns + self.fetching.total_ns + self._charged_ns

    @property
    def hook_steps(self) -> int:
        """The number of these steps; 0 as long as `hook_ns` is not known."""
        return self.boundaries if self.timed else 0

    # -- the unfinished step --------------------------------------------------------------------------------------

    def recent(self) -> list[Event]:
        """The last events of the unfinished step: tells the stack sampler what the training thread is at."""
        return self.events[-256:]


class Recorder(Bookkeeping, core.EventLog):
    """The recorder of a process. `emit` is what hooks get; `chunks` is what the helper thread takes."""
