"""What streams carry that others have not waited for: a vector clock, that knows no torch.

What is issued on a stream is numbered by its *source*, the stream and its kind. A stream holds the newest number of
each source that is before its own next work; so does an event, of when it was recorded. A wait that brings a stream
nothing newer waits for nothing: that of a stream for one that had waited for it, or a second one for the same.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from typing import Any

COMM, COPY = "comm", "copy"
Key = tuple[int, int]
"""The key of a stream: its device and its number there."""
Source = tuple[Key, str]
ClockVector = Mapping[Source, int]
"""Never changed once it is there: events hold on to it."""
_NOTHING: ClockVector = {}
_MOST_OPEN = 4096


class Streams:
    """All streams of this process."""

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
        """The stream's next work comes after it."""
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
