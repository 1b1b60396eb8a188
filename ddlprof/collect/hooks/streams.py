"""What streams carry, and which stream the clock is on."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from ddlprof.collect.accelerator.protocol import Absent, Accelerator
from ddlprof.collect.drops import STREAM_WAIT
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind
from ddlprof.torch_private.engine import graph_task

COMM, COPY = "comm", "copy"
Key = tuple[int, int]
"""The key of a stream: its device and its number there."""
Source = tuple[Key, str]
ClockVector = Mapping[Source, int]
"""Never changed once it is there: events hold on to it."""
_NOTHING: ClockVector = {}
_MOST_OPEN = 4096


class VectorClock:
    """What streams carry that others have not waited for; it knows no torch.

    What is issued on a stream is numbered by its *source*, the stream and its kind. A stream holds the newest number of
    each source that is before its own next work; so does an event, of when it was recorded. A wait that brings a stream
    nothing newer waits for nothing: that of a stream for one that had waited for it, or a second one for the same.
    """

    def __init__(self) -> None:
        self.marks: dict[Key, ClockVector] = {}
        """What each stream carries; empty as long as there is nothing to wait for."""
        self._numbers = itertools.count(1)
        self._items: dict[Source, deque[tuple[int, Any]]] = {}

    def on(self, stream: Key) -> ClockVector:
        """The marks that come before the stream's next work."""
        return self.marks.get(stream, _NOTHING)

    def issue(self, stream: Key, source: Source, item: Any = None) -> None:
        """The stream gets work of that source, or waits for it; `item` is handed out with the first wait for it."""
        number = next(self._numbers)
        self.marks[stream] = {**self.marks.get(stream, _NOTHING), source: number}
        if item is not None:
            self._items.setdefault(source, deque(maxlen=_MOST_OPEN)).append((number, item))

    def newer(self, stream: Key, vector: ClockVector) -> ClockVector:
        """The part of `vector` that the stream has not waited for."""
        known = self.marks.get(stream, _NOTHING)
        if known is vector:
            return _NOTHING
        return {source: number for source, number in vector.items() if number > known.get(source, 0)}

    def wait(self, stream: Key, newer: ClockVector) -> None:
        """Notes that the stream's next work comes after these."""
        self.marks[stream] = {**self.marks.get(stream, _NOTHING), **newer}

    def everything(self) -> ClockVector:
        """What all streams carry, for when a whole device is waited for."""
        found: dict[Source, int] = {}
        for vector in list(self.marks.values()):
            for source, number in vector.items():
                found[source] = max(number, found.get(source, 0))
        return found

    def take_items(self, vector: ClockVector) -> tuple[Any, ...]:
        """The items of communication that `vector` comes after, each given once."""
        found = []
        for source, number in vector.items():
            items = self._items.get(source)
            while items and items[0][0] <= number:
                found.append(items.popleft()[1])
        return tuple(found)


class Streams:
    """The streams as hooks see them: what they carry, and which stream the clock is on."""

    def __init__(self, torch: Any, recorder: Recorder, accelerator: Accelerator | None) -> None:
        self.recorder = recorder
        self.torch = torch
        self.accelerator = accelerator or Absent(torch)
        self._graph_task = graph_task(torch)
        self.state = VectorClock()
        self.busy = False
        """Whether a wait is under way already, and recorded."""
        self.reached: set[Key] = set()
        """Streams whose collectives the clock's stream was seen to wait for, and which no COMM_END has told yet."""
        self._told: set[Key] = set()
        self._events: WeakKeyDictionary[Any, ClockVector] = WeakKeyDictionary()

    def begin_anew(self) -> None:
        """Forgets the state: what happened without the hooks is not known."""
        self.state = VectorClock()
        self.busy = False
        self.reached.clear()
        self._told.clear()
        self._events.clear()

    # -- which stream ---------------------------------------------------------------------------------------------

    @property
    def clock_stream(self) -> Any:
        """The one that stamps are recorded on; None as long as the clock is the host's."""
        device = self.recorder.device
        return None if device is None else device.stream

    def current(self) -> Any:
        """The current stream of the clock's device; None as long as the clock is the host's."""
        clock = self.clock_stream
        return None if clock is None else self.accelerator.current_stream(clock.device_index)

    def is_clock(self, stream: Any) -> bool:
        """Whether the clock is on it; on the default stream, before it is known."""
        device = self.recorder.device
        return bool(stream == (self.accelerator.default_stream() if device is None else device.stream))

    def on_clock_stream(self) -> bool:
        """Whether the current stream of the clock's device is the clock's."""
        return self.is_clock(self.current() or self.accelerator.current_stream())

    def of_step(self) -> bool:
        """Whether the step waits for what this thread waits for: the training thread, or the autograd engine's."""
        inside = threading.get_ident() == self.recorder.thread or self._graph_task() != -1
        return bool(inside and self.recorder.active)

    def _asleep(self) -> bool:
        """Whether nothing is done now, as it is traced or captured."""
        return bool(self.torch.compiler.is_compiling() or self.accelerator.is_capturing())

    # -- what they carry ------------------------------------------------------------------------------------------

    def note(self, stream: Any, what: str, item: Any = None, source: Key | None = None) -> None:
        """Something was issued on a stream, or it waits for what was issued on the stream `source`."""
        self.carry(key_of(stream), what, item, source)

    def carry(self, key: Key, what: str, item: Any = None, source: Key | None = None) -> None:
        """`note` for the stream of that key."""
        if not self._asleep():
            self.state.issue(key, (source or key, what), item)

    def recorded(self, event: Any, stream: Any) -> None:
        """The event comes after what the stream carries now."""
        if stream is None:
            stream = self.accelerator.current_stream()
        found = self.state.marks.get((stream.device_index, stream.stream_id))
        if found:
            self._events[event] = found
        else:
            self._events.pop(event, None)

    def reach(self, *streams: Key) -> None:
        """The clock's stream waits for collectives that were issued on them."""
        self.reached |= set(streams) - self._told

    def tell(self) -> tuple[Key, ...]:
        """What a COMM_END is to tell."""
        if not self.reached:
            return ()
        reached, self.reached = tuple(self.reached), set()
        self._told.update(reached)
        return reached

    # -- waits ----------------------------------------------------------------------------------------------------

    def event_waits(self, event: Any, stream: Any = None) -> tuple[Kind, Any] | None:
        """What the clock's stream waits for, with its payload, if a stream is about to wait for an event."""
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
        """The communication that the host waits for in waiting for an event, with its payload."""
        return self._host_waits(self._events.get(event))

    def host_waits_for_stream(self, stream: Any) -> tuple[Kind, Any] | None:
        """The communication that the host waits for in waiting for a stream, with its payload."""
        return self._host_waits(self.state.on(key_of(stream)))

    def host_waits_for_device(self) -> tuple[Kind, Any] | None:
        """The communication that the host waits for in waiting for a device, with its payload."""
        return self._host_waits(self.state.everything())

    def _host_waits(self, found: ClockVector | None) -> tuple[Kind, Any] | None:
        """What the training thread has waited for is before all that it launches from now on."""
        clock = self.clock_stream
        if not found or clock is None or threading.get_ident() != self.recorder.thread:
            return None
        newer = self.state.newer(key_of(clock), found)
        if not newer or self._asleep():
            return None
        self.state.wait(key_of(clock), newer)
        return self._waits(newer)

    def _waits(self, newer: ClockVector) -> tuple[Kind, Any] | None:
        """What is waited for, communication rather than copies."""
        issued = {what for _, what in newer}
        if COMM not in issued:
            return (Kind.H2D_END, None) if COPY in issued and not self.busy and self.of_step() else None
        if not self.of_step():
            return None
        self.reach(*(key for key, what in newer if what == COMM))
        return None if self.busy else (Kind.COMM_END, self.state.take_items(newer) or None)

    def timed(self, original: Callable[..., Any], waits: Callable[..., tuple[Kind, Any] | None]) -> Callable[..., Any]:
        """Wraps a call that may wait."""
        emit = self.recorder.emit_in_backward

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.state.marks:
                return original(*args, **kwargs)
            waited = None
            try:
                waited = waits(*args, **kwargs)
            except Exception as error:
                self.recorder.drops.add(STREAM_WAIT, error)
            if waited is None or not emit(_BEGINS[waited[0]]):
                return original(*args, **kwargs)
            kind, items = waited
            self.busy = True
            try:
                return original(*args, **kwargs)
            finally:
                self.busy = False
                if kind == Kind.COMM_END:
                    emit(kind, False, items, self.tell())
                else:
                    emit(kind)

        return wrapper

    def recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `Event.record`."""

        @functools.wraps(original)
        def record(event: Any, stream: Any = None) -> Any:
            result = original(event, stream)
            if self.state.marks:
                try:
                    self.recorded(event, stream)
                except Exception as error:
                    self.recorder.drops.add(STREAM_WAIT, error)
            return result

        return record


_BEGINS = {Kind.COMM_END: Kind.COMM_BEGIN, Kind.H2D_END: Kind.H2D_BEGIN}


def key_of(stream: Any) -> Key:
    """The driver's handle of a default stream is the same for all devices; the number of a stream is cheap to ask."""
    return (stream.device_index, stream.stream_id)
