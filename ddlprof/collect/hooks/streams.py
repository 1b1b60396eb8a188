"""Which collectives and copies each device stream has issued or waits for, and which stream has the step clock."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ddlprof.collect.accelerator.protocol import Accelerator, NoAccelerator
from ddlprof.collect.drops import STREAM_WAIT
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind
from ddlprof.torch_private.engine import graph_task

COMM, COPY = "comm", "copy"
Key = tuple[int, int]
"""The key of a stream: its device and its number there."""


class WorkQueue(NamedTuple):
    """Where work comes from that ends in the order of its numbers."""

    stream: Key
    """On which it was issued."""
    what: str
    """COMM or COPY."""
    group: str = ""
    """The process group of an asynchronous collective, which runs on a stream that NCCL has for the group."""


ClockVector = Mapping[WorkQueue, int]
"""The newest number of each source. It is never changed after it was made, because events keep a reference to it."""
_NOTHING: ClockVector = {}
_MOST_OPEN = 4096
_MARKS = "_ddlprof_marks"
"""The attribute of an event that holds them, and whose they are."""


class VectorClock:
    """Tells which work issued on some streams the other streams have not waited for yet. It does not use torch.

    Work is numbered in the order of issue, and its *source* is its stream, kind (COMM or COPY) and group. Each stream
    holds, by source, the newest number that comes before its own next work; an event holds those of its stream at the
    time it was recorded. A wait that brings a stream no newer number waits for nothing: for instance a second wait for
    the same event, or a wait for a stream that had itself waited for this one.
    """

    def __init__(self) -> None:
        self.clocks: dict[Key, ClockVector] = {}
        """The vector of each stream; empty as long as there is nothing to wait for."""
        self._numbers = itertools.count(1)
        self._items: dict[WorkQueue, deque[tuple[int, Any]]] = {}

    def on(self, stream: Key) -> ClockVector:
        """The marks that come before the stream's next work."""
        return self.clocks.get(stream, _NOTHING)

    def issue(self, stream: Key, source: WorkQueue, item: Any = None) -> None:
        """Notes that the stream gets work of that source, or waits for it. The first wait for it returns `item`."""
        number = next(self._numbers)
        self.clocks[stream] = {**self.clocks.get(stream, _NOTHING), source: number}
        if item is not None:
            self._items.setdefault(source, deque(maxlen=_MOST_OPEN)).append((number, item))

    def newer(self, stream: Key, vector: ClockVector) -> ClockVector:
        """The part of `vector` that the stream has not waited for."""
        known = self.clocks.get(stream, _NOTHING)
        if known is vector:
            return _NOTHING
        return {source: number for source, number in vector.items() if number > known.get(source, 0)}

    def wait(self, stream: Key, newer: ClockVector) -> None:
        """Notes that the stream's next work comes after the work in `newer`."""
        self.clocks[stream] = {**self.clocks.get(stream, _NOTHING), **newer}

    def everything(self) -> ClockVector:
        """The newest number of each source over all streams, for a wait for the whole device."""
        found: dict[WorkQueue, int] = {}
        for vector in list(self.clocks.values()):
            for source, number in vector.items():
                found[source] = max(number, found.get(source, 0))
        return found

    def take_items(self, vector: ClockVector) -> tuple[Any, ...]:
        """The items (collectives) up to the numbers in `vector`; each item is returned only once."""
        found = []
        for source, number in vector.items():
            items = self._items.get(source)
            while items and items[0][0] <= number:
                found.append(items.popleft()[1])
        return tuple(found)


class EventClocks:
    """What each event comes after.

    It is kept on the event itself. Torch 2.10 to 2.12 free a `torch.cuda.Event` without clearing the weak references to
    it (pytorch/pytorch#183403), and a process that drops such a reference later crashes. Only for classes in C, whose
    objects take no attributes (`torch.Event`), weak references are held.
    """

    def __init__(self) -> None:
        self._others: WeakKeyDictionary[Any, ClockVector] = WeakKeyDictionary()

    def get(self, event: Any) -> ClockVector | None:
        """The marks of the stream when the event was recorded; None if there were none."""
        if not hasattr(event, "__dict__"):
            return self._others.get(event)
        owner, found = vars(event).get(_MARKS, (None, None))
        return found if owner is self else None

    def set(self, event: Any, found: ClockVector) -> None:
        """Raises TypeError if the event takes neither an attribute nor a weak reference."""
        if hasattr(event, "__dict__"):
            vars(event)[_MARKS] = self, found
        else:
            self._others[event] = found

    def drop(self, event: Any) -> None:
        """Forgets what was known of the event, if anything was."""
        if hasattr(event, "__dict__"):
            vars(event).pop(_MARKS, None)
        else:
            self._others.pop(event, None)


class Streams:
    """The streams as hooks see them: what was issued on each, and which stream has the step clock."""

    def __init__(self, torch: Any, recorder: Recorder, accelerator: Accelerator | None) -> None:
        self.recorder = recorder
        self.torch = torch
        self.accelerator = accelerator or NoAccelerator(torch)
        self._graph_task = graph_task(torch)
        self.state = VectorClock()
        self.busy = False
        """Whether a wait is under way already, and recorded."""
        self.reached: set[Key] = set()
        """Streams for whose collectives the clock's stream has waited, and that no COMM_END event has reported yet."""
        self._told: set[Key] = set()
        self._events = EventClocks()

    def begin_anew(self) -> None:
        """Forgets the state, because what happened while the hooks were removed is not known."""
        self.state = VectorClock()
        self.busy = False
        self.reached.clear()
        self._told.clear()
        self._events = EventClocks()

    # -- which stream ---------------------------------------------------------------------------------------------

    @property
    def clock_stream(self) -> Any:
        """The stream on which the clock's events are recorded; None as long as the clock is the host's."""
        device = self.recorder.device
        return None if device is None else device.stream

    def current(self) -> Any:
        """The current stream of the clock's device; None as long as the clock is the host's."""
        clock = self.clock_stream
        return None if clock is None else self.accelerator.current_stream(clock.device_index)

    def is_clock(self, stream: Any) -> bool:
        """Whether the clock is on this stream; before the device is known, whether this is the default stream."""
        device = self.recorder.device
        return bool(stream == (self.accelerator.default_stream() if device is None else device.stream))

    def on_clock_stream(self) -> bool:
        """Whether the current stream of the clock's device is the clock's."""
        return self.is_clock(self.current() or self.accelerator.current_stream())

    def of_step(self) -> bool:
        """Whether the step waits if this thread waits: True in the training thread and in autograd's threads."""
        inside = threading.get_ident() == self.recorder.thread or self._graph_task() != -1
        return bool(inside and self.recorder.active)

    def _asleep(self) -> bool:
        """Whether torch is tracing or capturing a graph, so that the device does nothing of this now."""
        return bool(self.torch.compiler.is_compiling() or self.accelerator.is_capturing())

    def rest(self) -> None:
        """Called between steps: no wait lasts so long. One that seems to be under way was left by an exception, or its
        backward was not seen to end."""
        if self.busy and threading.get_ident() == self.recorder.thread and self._graph_task() == -1:
            self.busy = False

    # -- what they carry ------------------------------------------------------------------------------------------

    def note(self, stream: Any, what: str) -> None:
        """Notes that work of the kind `what` was issued on a stream."""
        self.carry(key_of(stream), what)

    def carry(self, key: Key, what: str, item: Any = None) -> None:
        """`note` for the stream of that key."""
        if not self._asleep():
            self.state.issue(key, WorkQueue(key, what), item)

    def await_work(self, stream: Any, source: WorkQueue, number: int) -> None:
        """Notes that a stream waits for the work of that number."""
        if not self._asleep():
            key = key_of(stream)
            self.state.wait(key, self.state.newer(key, {source: number}))

    def recorded(self, event: Any, stream: Any) -> None:
        """Notes that the event was recorded on the stream, after all that the stream has issued or waited for."""
        if stream is None:
            stream = self.accelerator.current_stream()
        found = self.state.clocks.get((stream.device_index, stream.stream_id))
        if found:
            self._events.set(event, found)
        else:
            self._events.drop(event)

    def reach(self, *streams: Key) -> None:
        """Notes that the clock's stream waits for collectives that were issued on these streams."""
        self.reached |= set(streams) - self._told

    def tell(self) -> tuple[Key, ...]:
        """The streams that the next COMM_END event has to report; each is returned once."""
        if not self.reached:
            return ()
        reached, self.reached = tuple(self.reached), set()
        self._told.update(reached)
        return reached

    # -- waits ----------------------------------------------------------------------------------------------------

    def event_waits(self, event: Any, stream: Any = None) -> tuple[Kind, Any] | None:
        """The kind and payload of a stream's wait for an event; None if it is not a wait to be recorded."""
        found = self._events.get(event)
        if not found:
            return None
        if stream is None:
            stream = self.accelerator.current_stream()
        key = (stream.device_index, stream.stream_id)
        newer = self.state.newer(key, found)
        if not newer or self._asleep():
            return None
        self.state.wait(key, newer)
        return self._waits(newer) if self.is_clock(stream) else None

    def host_waits_for_event(self, event: Any) -> tuple[Kind, Any] | None:
        """The kind and payload of the host's wait for an event; None if it is not a wait to be recorded."""
        return self._host_waits(self._events.get(event))

    def host_waits_for_stream(self, stream: Any) -> tuple[Kind, Any] | None:
        """The kind and payload of the host's wait for a stream; None if it is not a wait to be recorded."""
        return self._host_waits(self.state.on(key_of(stream)))

    def host_waits_for_device(self) -> tuple[Kind, Any] | None:
        """The kind and payload of the host's wait for the device; None if it is not a wait to be recorded."""
        return self._host_waits(self.state.everything())

    def _host_waits(self, found: ClockVector | None) -> tuple[Kind, Any] | None:
        """What the training thread has waited for comes before all that it launches later on the clock's stream."""
        clock = self.clock_stream
        if not found or clock is None or threading.get_ident() != self.recorder.thread:
            return None
        newer = self.state.newer(key_of(clock), found)
        if not newer or self._asleep():
            return None
        self.state.wait(key_of(clock), newer)
        return self._waits(newer)

    def _waits(self, newer: ClockVector) -> tuple[Kind, Any] | None:
        """The kind and payload of a wait for this work; a wait for both communication and copies is communication."""
        issued = {source.what for source in newer}
        if COMM not in issued:
            return (Kind.H2D_END, None) if COPY in issued and not self.busy and self.of_step() else None
        if not self.of_step():
            return None
        self.reach(*(source.stream for source in newer if source.what == COMM))
        return None if self.busy else (Kind.COMM_END, self.state.take_items(newer) or None)

    def timed(self, original: Callable[..., Any], waits: Callable[..., tuple[Kind, Any] | None]) -> Callable[..., Any]:
        """Wraps a call that may wait; `waits`, given its arguments, returns the kind and payload, or None."""
        emit = self.recorder.emit_in_backward

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.state.clocks:
                return original(*args, **kwargs)
            waited = None
            try:
                waited = waits(*args, **kwargs)
            except Exception as error:
                self.recorder.drops.add(STREAM_WAIT, error)
            if waited is None:
                return original(*args, **kwargs)
            kind, items = waited
            begun = True
            try:
                begun = emit(_BEGINS[kind])
                if begun:
                    self.busy = True
                return original(*args, **kwargs)
            finally:
                if begun:
                    self.busy = False
                    if kind == Kind.COMM_END:
                        emit(kind, False, items, self.tell())
                    else:
                        emit(kind)

        return wrapper

    def recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `Event.record`, to learn what each event comes after."""

        @functools.wraps(original)
        def record(event: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(event, *args, **kwargs)
            if self.state.clocks:
                try:
                    self.recorded(event, args[0] if args else kwargs.get("stream"))
                except Exception as error:
                    self.recorder.drops.add(STREAM_WAIT, error)
            return result

        return record


_BEGINS = {Kind.COMM_END: Kind.COMM_BEGIN, Kind.H2D_END: Kind.H2D_BEGIN}


def key_of(stream: Any) -> Key:
    """The key of a stream. Not the driver's handle: that of the default stream is the same for all devices."""
    return (stream.device_index, stream.stream_id)
