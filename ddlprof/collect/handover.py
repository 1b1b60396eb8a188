"""Takes the recorder's chunks in the helper thread, and asks the device for the times of their events.

The device is asked for a few events at a time: each reading holds the interpreter's lock, which the training needs to
launch kernels.
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
"""The number of events whose times are read from a device at once."""
_QUERIED_CHUNKS = 8
"""The number of chunks that one query covers: it asks for the last event on each stream."""


class Handover:
    """Gives the events of the recorder's chunks, with their times.

    `on_lag` is called with the nanoseconds by which the device is behind the host. `device_free` is held while a graph
    is captured.
    """

    def __init__(self, recorder: Recorder, on_lag: Callable[[int], None], device_free: threading.Lock) -> None:
        self._recorder = recorder
        self._on_lag = on_lag
        self._device_free = device_free

    def take(self) -> Iterator[list[Event]]:
        """Yields the events whose times are known by now, in order; each list is a part of one chunk."""
        recorder, chunks, passed = self._recorder, self._recorder.chunks, 0
        while chunks:
            device = recorder.device
            if device is None:
                chunk = chunks.popleft()
                recorder.taken += len(chunk)
                yield chunk
                continue
            passed = passed or self._passed_chunks()
            if not passed:
                return
            passed -= 1
            chunk = chunks.popleft()
            recorder.taken += len(chunk)
            for begin in range(0, len(chunk), _PIECE_EVENTS):
                with self.device_asked() as free:
                    if not free:
                        chunks.appendleft(chunk[begin:])
                        recorder.taken -= len(chunk) - begin
                        return
                    events = device.resolve(chunk[begin : begin + _PIECE_EVENTS])
                    if device.lag_ns is not None:
                        self._on_lag(device.lag_ns)
                yield events

    def is_passed(self, chunk: list[Event]) -> bool:
        """Whether the device has passed all events of the chunk, so that their times are known."""
        device = self._recorder.device
        if device is None:
            return True
        with self.device_asked() as free:
            return free and bool(device.ready(chunk))

    @contextmanager
    def device_asked(self) -> Iterator[bool]:
        """Yields whether the device may be queried: it may not during a capture, and some captures never end."""
        free = self._device_free.acquire(timeout=_CAPTURE_WAIT_S)
        try:
            yield free
        finally:
            if free:
                self._device_free.release()

    def _passed_chunks(self) -> int:
        """The number of next chunks that the device has passed, at most `_QUERIED_CHUNKS`."""
        chunks = self._recorder.chunks  # by index: the training thread may append in the middle of an iteration
        several = [chunks[number] for number in range(min(len(chunks), _QUERIED_CHUNKS))]
        if len(several) > 1 and self.is_passed(list(chain.from_iterable(several))):
            return len(several)
        return int(self.is_passed(several[0]))
