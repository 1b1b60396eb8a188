"""CUDA graphs: captures, during which no thread of ours may ask the device anything, and replays of captured steps.

During a capture the device runs nothing, so the events of the hooks are kept and recorded again at each replay. Only
graphs that hold a backward or an update matter: a graph of a forward alone is replayed inside a module's forward.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from threading import Lock
from typing import Any

from ddlprof.collect.accelerator.protocol import Accelerator, NoAccelerator
from ddlprof.collect.install import Uninstall, all_of, quiet_method, replace
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind

HOLD_S = 2
"""The most seconds that a capture waits for the helper thread to release the device."""
_OUTSIDE = (Kind.DATA_BEGIN, Kind.OPTIMIZER_END)
"""Kinds of events at which we check for a capture that an exception has left, and that will never end."""
_SAID = "steps are replays of a captured graph: inside one, forward, backward and update are not told apart"


class Captures:
    """The captures under way in this process, and the events captured. `device_free` is held during any capture."""

    def __init__(self, recorder: Recorder, accelerator: Accelerator | None, device_free: Lock) -> None:
        self.recorder = recorder
        self.accelerator: Accelerator = NoAccelerator(None) if accelerator is None else accelerator
        self._device_free = device_free
        self._graphs: dict[int, list[tuple[Any, ...]]] = {}
        self._kept: weakref.WeakKeyDictionary[Any, list[tuple[Any, ...]]] = weakref.WeakKeyDictionary()
        self._holds = self._said = False

    def install(self) -> Uninstall:
        """Wraps the accelerator's classes of graphs, which torch's own helpers use, too."""
        return all_of(self.forget, *(_watch(graph, self) for graph in self.accelerator.graph_types))

    def in_flight(self) -> bool:
        """Whether a capture is under way, as far as this thread can tell: the device must not be queried then."""
        return bool(self._graphs) or self.accelerator.is_capturing()

    @quiet_method
    def begin(self, graph: Any) -> None:
        """Called when a capture is about to begin."""
        if not self._holds:
            self._holds = self._device_free.acquire(timeout=HOLD_S)
        events = self._graphs[id(graph)] = []
        weakref.finalize(graph, self._over, id(graph))
        if threading.get_ident() == self.recorder.thread:
            self.recorder.capture = functools.partial(self._keep, events)

    @quiet_method
    def end(self, graph: Any, captured: bool) -> None:
        """Called when a capture has ended, or could not begin."""
        events = self._graphs.get(id(graph), [])
        self._over(id(graph))
        kinds = {event[0] for event in events}
        if captured and kinds & {Kind.BACKWARD_BEGIN, Kind.OPTIMIZER_END}:
            self._kept[graph] = events

    def forget(self) -> None:
        """Ends all captures, also those that nobody ended."""
        for graph in list(self._graphs):
            self._over(graph)

    def _over(self, graph: int) -> None:
        self._graphs.pop(graph, None)
        if not self._graphs:
            self.recorder.capture = None
            if self._holds:
                self._holds = False
                self._device_free.release()

    def _keep(self, events: list[tuple[Any, ...]], *event: Any) -> bool:
        """Takes an event; False if the capture it would belong to was left by an exception."""
        if event[0] in _OUTSIDE and not self.accelerator.is_capturing():
            self.forget()
            if event[0] == Kind.OPTIMIZER_END:  # the backward that it needs was taken for a captured one
                self.recorder.emit(Kind.BACKWARD_BEGIN, True)
                self.recorder.emit(Kind.BACKWARD_END)
            return False
        events.append(event)
        return True

    def replaying(self, graph: Any) -> Callable[[], None] | None:
        """Called before a replay: if it holds a step, records its first events and returns a function to call after."""
        events = self._kept.get(graph)
        emit = self.recorder.emit
        if events is None or self.recorder.capture is not None or not emit(Kind.FORWARD_BEGIN, True):
            return None
        if not self._said:
            self._said = True
            self.recorder.note("graphs", _SAID)
        emit(Kind.FORWARD_END, True)
        emit(Kind.BACKWARD_BEGIN, True)
        return functools.partial(self._replayed, graph, events)

    def _replayed(self, graph: Any, events: list[tuple[Any, ...]]) -> None:
        emit = self.recorder.emit
        emit(Kind.BACKWARD_END)
        unseen = sum(event[0] == Kind.COLLECTIVE for event in events)
        if unseen:
            emit(Kind.UNSEEN, unseen)
        for kind, optimizer, _, first_seen in events:
            if kind == Kind.OPTIMIZER_END:
                emit(Kind.OPTIMIZER_BEGIN, optimizer)
                emit(Kind.OPTIMIZER_END, optimizer, False, first_seen)
        self._kept[graph] = [(kind, a, b, None) for kind, a, b, _ in events]  # an optimizer is new once


def _watch(graph: Any, captures: Captures) -> Uninstall:
    begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        captures.begin(self)
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            captures.end(self, False)
            raise

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        captured = False
        try:
            result = end(self, *args, **kwargs)
            captured = True
            return result
        finally:
            captures.end(self, captured)

    @functools.wraps(replay)
    def timed_replay(self: Any, *args: Any, **kwargs: Any) -> Any:
        after = captures.replaying(self)
        try:
            return replay(self, *args, **kwargs)
        finally:
            if after is not None:
                after()

    return all_of(
        replace(graph, "capture_begin", capture_begin),
        replace(graph, "capture_end", capture_end),
        replace(graph, "replay", timed_replay),
    )
