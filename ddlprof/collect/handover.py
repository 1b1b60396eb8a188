"""From the recorder's chunks to events with times, in the helper thread; a device is asked for those it has passed.

In pieces, as each reading holds the interpreter's lock, which a training that launches kernels cannot do without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Event

_CAPTURE_WAIT_S = 1.0
_PIECE_EVENTS = 32
"""How many events of a device are read at once."""
_ASKED_CHUNKS = 8
"""How many chunks a device is asked about at once, by the last event on each of its streams."""


class Handover:
    """`take` gives the events of the recorder's chunks; `lags` is called with what a device is behind in them.

    `device_free`: held while a graph is captured.
    """

    def __init__(self, recorder: Recorder, lags: Callable[[int], None], device_free: threading.Lock) -> None:
        self._recorder = recorder
        self._lags = lags
        self._device_free = device_free

    def take(self) -> Iterator[list[Event]]:
        """The events whose times are known by now, in order and in pieces; a piece is of one chunk."""
        chunks, passed = self._recorder.chunks, 0
        while chunks:
            device = self._recorder.device
            if device is None:
                yield chunks.popleft()
                continue
            passed = passed or self._passed_chunks()
            if not passed:
                return
            passed -= 1
            chunk = chunks.popleft()
            for begin in range(0, len(chunk), _PIECE_EVENTS):
                with self.device_asked() as free:
                    if not free:
                        chunks.appendleft(chunk[begin:])
                        return
                    events = device.resolve(chunk[begin : begin + _PIECE_EVENTS])
                    if device.lag_ns is not None:
                        self._lags(device.lag_ns)
                yield events

    def is_passed(self, chunk: list[Event]) -> bool:
        """Whether the times of all its events can be told now."""
        device = self._recorder.device
        if device is None:
            return True
        with self.device_asked() as free:
            return free and bool(device.ready(chunk))

    @contextmanager
    def device_asked(self) -> Iterator[bool]:
        """Whether the device may be asked: not during a capture, some of which never end."""
        free = self._device_free.acquire(timeout=_CAPTURE_WAIT_S)
        try:
            yield free
        finally:
            if free:
                self._device_free.release()

    def _passed_chunks(self) -> int:
        """How many of the next chunks the device has passed, as far as it is asked."""
        chunks = self._recorder.chunks  # by index: the training thread may append in the middle of an iteration
        several = [chunks[number] for number in range(min(len(chunks), _ASKED_CHUNKS))]
        if len(several) > 1 and self.is_passed(list(chain.from_iterable(several))):
            return len(several)
        return int(self.is_passed(several[0]))
