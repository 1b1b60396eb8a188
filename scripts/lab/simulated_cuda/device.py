"""Simulated GPUs: streams, events and graphs that keep time as CUDA's do, on a machine that has none.

A kernel takes a place on its stream's timeline: it begins when it was launched, when the stream is free and when what
the stream waits for is over, whichever is latest. Nothing is computed here (see `tensors`) and nobody waits but who
asks for it. The timeline is that of `time.perf_counter_ns`.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scripts.lab.simulated_cuda.memory import Memory
from scripts.lab.virtual_clock import HostClock, VirtualClock

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
"""What a thread may do beside captures, in the numbers of CUDA."""
_MODES = {"default": GLOBAL, "global": GLOBAL, "thread_local": THREAD_LOCAL, "relaxed": RELAXED}
CAPTURE_ERROR = "CUDA error: operation not permitted when stream is capturing"
ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered"
_LEGACY_DEFAULT_STREAM = 0


class Activity(NamedTuple):
    """Something that a device did, or will have done; nanoseconds of the machine's clock."""

    name: str
    device: int
    stream: int
    begin_ns: int
    end_ns: int


@dataclass(eq=False)
class Stream:
    """The timeline of one stream."""

    device: int
    ident: int
    free_ns: int = 0
    """When what was launched so far is over."""
    graph: Graph | None = None
    """That captures this stream."""
    queue: deque[int] = field(default_factory=deque)
    """When what was launched last begins: as much as the queue held."""


@dataclass
class Machine:
    """All simulated devices of this process."""

    clock: VirtualClock | HostClock
    """Of the host; nobody passes time on it but who launches a kernel, records an event or waits."""
    devices: int = 2
    names: str = "Simulated GPU"
    activities: deque[Activity] = field(default_factory=lambda: deque(maxlen=100_000))
    contexts: set[int] = field(default_factory=set)
    """Devices on which this process holds a context."""
    error: str | None = None
    """A sticky error: every call raises it from now on."""
    clock_rate: float = 1.0
    """The rate of the devices' clocks against the host's."""
    collective_ns: int = 1_000_000
    """What a collective takes on the device."""
    launch_ns: int = 0
    """What launching a kernel takes on the host."""
    resolution_ns: int = 500
    """Of the time between two events."""
    event_ns: int = 0
    """What recording an event takes on the host."""
    ask_ns: int = 0
    """What asking about an event takes there. Who asks keeps the interpreter's lock meanwhile, as with CUDA's."""
    pending: int = 1_024
    """What a stream's queue holds. A thread that launches more waits for a place."""
    one_queue: bool = field(default_factory=lambda: os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1")
    """Whether all streams of a device share one queue: nothing begins before what was launched earlier has begun."""
    memory: Memory = field(default_factory=Memory)
    capturing: list[Graph] = field(default_factory=list)
    works: deque[tuple[Any, int]] = field(default_factory=lambda: deque(maxlen=64))
    """The last collectives: what their callers got (`Work`), and when each is over."""
    synchronized: list[tuple[str, int]] = field(default_factory=list)
    """The name of the thread that waited for a stream, and the stream's number, each time."""

    def __post_init__(self) -> None:
        self._streams: dict[tuple[int, int], Stream] = {}
        self._idents = itertools.count(1)
        self._groups: dict[str, int] = {}
        """By the name of a group of NCCL: the number of its stream."""
        self._thread = threading.local()
        self._begun_ns: dict[int, int] = {}
        """When what each device was given last begins."""

    # -- streams --------------------------------------------------------------------------------------------------

    @property
    def device(self) -> int:
        """The calling thread's current device."""
        return getattr(self._thread, "device", 0)

    @device.setter
    def device(self, index: int) -> None:
        self._thread.device = index

    def stream(self, device: int, ident: int) -> Stream:
        """The stream with this number; 0 is the default stream."""
        return self._streams.setdefault((device, ident), Stream(device, ident))

    def new_stream(self, device: int) -> Stream:
        """A stream of its own."""
        return self.stream(device, next(self._idents))

    def current(self, device: int | None = None) -> Stream:
        """The calling thread's current stream on a device."""
        device = self.device if device is None else device
        current: dict[int, int] = self._thread.__dict__.setdefault("streams", {})
        return self.stream(device, current.get(device, _LEGACY_DEFAULT_STREAM))

    def make_current(self, stream: Stream) -> None:
        """What is launched by this thread goes there from now on."""
        self._thread.__dict__.setdefault("streams", {})[stream.device] = stream.ident

    def where(self) -> tuple[int, dict[int, int]]:
        """The calling thread's current device, and its current streams."""
        return self.device, dict(self._thread.__dict__.get("streams", {}))

    def go_to(self, where: tuple[int, dict[int, int]]) -> None:
        """The calling thread's current device and streams are from now on those of another thread (`where`)."""
        self.device, streams = where
        self._thread.__dict__["streams"] = dict(streams)

    def free_ns(self, stream: Stream) -> int:
        """When something launched on it now would begin."""
        begun_ns = self._begun_ns.get(stream.device, 0) if self.one_queue else 0
        return max(stream.free_ns, begun_ns, self.clock.perf_counter_ns())

    # -- work -----------------------------------------------------------------------------------------------------

    def touch(self, device: int) -> None:
        """A call of the driver that needs a context."""
        if self.error:
            raise RuntimeError(self.error)
        self.contexts.add(device)

    def enqueue(self, stream: Stream) -> int:
        """Puts a kernel, copy or event into a stream's queue as soon as there is a place; returns when it begins."""
        queue = stream.queue
        if len(queue) >= self.pending:
            self.clock.wait_until(queue[-self.pending])
        while queue and queue[0] <= self.clock.perf_counter_ns():
            queue.popleft()
        begin = self._begun_ns[stream.device] = self.free_ns(stream)
        queue.append(begin)
        return begin

    def launch(self, name: str, duration_ns: int, stream: Stream | None = None) -> int:
        """Puts a kernel or copy on a stream; returns when it will be over (0 if it was captured)."""
        stream = stream or self.current()
        self.touch(stream.device)
        if stream.graph is not None:
            stream.graph.kernels.append((name, duration_ns))
            return 0
        self.clock.work(self.launch_ns)
        begin = self.enqueue(stream)
        stream.free_ns = begin + duration_ns
        self.activities.append(Activity(name, stream.device, stream.ident, begin, stream.free_ns))
        return stream.free_ns

    def launch_collective(self, name: str, device: int, group: str = "", at_once: bool = False) -> int:
        """Issues a collective as NCCL does; returns when it will be over.

        One that is waited for `at_once` runs on the current stream, any other on the stream that its group has on the
        device, after what the current stream has been given.
        """
        stream = current = self.current(device)
        if not at_once:
            stream = self.collectives(device, group)
            stream.free_ns = max(stream.free_ns, self.free_ns(current))
        return self.launch(f"ncclDevKernel_{name.removeprefix('c10d::')}", self.collective_ns, stream)

    def collectives(self, device: int, group: str) -> Stream:
        """The stream that NCCL has for a group on a device."""
        return self.stream(device, self._groups.setdefault(group, -1 - len(self._groups)))

    def await_collectives(self, until_ns: int | None = None) -> None:
        """The current stream, not the thread, waits for a collective, or for all: what waiting for a Work means."""
        current = self.current()
        if until_ns is None:
            streams = [self.collectives(current.device, group) for group in list(self._groups)]
            until_ns = max((stream.free_ns for stream in streams), default=0)
        current.free_ns = max(current.free_ns, until_ns)

    def await_stream(self, stream: Stream) -> None:
        """The calling thread waits until a stream is free."""
        self.touch(stream.device)
        self.forbid_while_capturing()
        self.synchronized.append((threading.current_thread().name, stream.ident))
        self.clock.wait_until(stream.free_ns)

    def await_device(self, device: int) -> None:
        """The calling thread waits until all streams of a device are free."""
        self.touch(device)
        for stream in list(self._streams.values()):
            if stream.device == device:
                self.await_stream(stream)

    def ask(self) -> None:
        """Somebody asks about an event."""
        if self.ask_ns:
            self.clock.hold(self.ask_ns)

    def exchange_capture_mode(self, mode: int) -> int:
        """As `cudaThreadExchangeStreamCaptureMode`: the calling thread's mode from now on; returns the former one."""
        before: int = getattr(self._thread, "capture_mode", GLOBAL)
        self._thread.capture_mode = mode
        return before

    def forbid_while_capturing(self) -> None:
        """A call that may be unsafe: ends the captures that forbid it to the calling thread in its mode, and raises."""
        mode, thread = getattr(self._thread, "capture_mode", GLOBAL), threading.get_ident()
        forbidding = [graph for graph in self.capturing if graph.forbids(thread, mode)]
        for graph in forbidding:
            graph.invalid = True
        if forbidding:
            raise RuntimeError(CAPTURE_ERROR)


class Graph:
    """Stands in the place of `torch._C._CUDAGraph`."""

    machine: Machine

    def __new__(cls, *args: Any) -> Any:
        """Constructs like the C class, whose constructor takes more than `object`'s."""
        graph = super().__new__(cls)
        graph.kernels = []
        graph.calls = []
        graph.streams = []
        graph.invalid = False
        graph.mode = GLOBAL
        graph.thread = 0
        return graph

    def __init__(self, *args: Any) -> None:
        self.kernels: list[tuple[str, int]]
        self.calls: list[Callable[[], object]]
        self.streams: list[Stream]
        self.invalid: bool
        self.mode: int
        self.thread: int

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
        """What this thread's current stream is given from now on is kept, not done."""
        stream = self.machine.current()
        self.machine.touch(stream.device)
        if stream.graph is not None:
            raise RuntimeError(CAPTURE_ERROR)
        self.mode, self.thread = _MODES[capture_error_mode], threading.get_ident()
        self.machine.capturing.append(self)
        self.add(stream)

    def forbids(self, thread: int, mode: int) -> bool:
        """Whether a thread in that mode may make no call that may be unsafe, as CUDA documents the modes."""
        if mode == RELAXED or self.mode == RELAXED:
            return False
        return self.thread == thread or (self.mode == mode == GLOBAL)

    def add(self, stream: Stream) -> None:
        """The capture takes this stream's work, too."""
        self.streams.append(stream)
        stream.graph = self

    def capture_end(self) -> None:
        """The streams are as before; raises if something happened that a capture does not survive."""
        for stream in self.streams:
            stream.graph = None
        if self in self.machine.capturing:
            self.machine.capturing.remove(self)
        if self.invalid:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def replay(self) -> None:
        """Does all that was captured; numbers are computed at once."""
        self.machine.launch("graph", sum(duration for _, duration in self.kernels))
        for call in self.calls:
            call()

    def reset(self) -> None:
        """Forgets what was captured."""
        self.kernels, self.calls = [], []

    def pool(self) -> tuple[int, int]:
        """The identity of the memory pool."""
        return (0, 1)
