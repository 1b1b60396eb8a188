"""The lines at which workers of a loader make batches: a thread in each worker looks at its stack now and then.

The numbers of samples go through the file of the worker's fetches (`ddlprof.collect.loader.worker.Ring`), from which
the helper thread of the training process reads them about once a second.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import weakref
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from ddlprof.base.real_time import time
from ddlprof.collect.process.frames import stack_of_thread
from ddlprof.model.source_locations import SourceLocation
from ddlprof.model.stack_samples import sparseness

_LOOK_S, _FIRST_LOOK_S, _FIRST_LOOKS = 0.25, 0.08, 100
"""The time between two looks, and that between the first ones."""
_MOST_PLACES, _MOST_TEXT = 24, 200
_HEAD = struct.Struct("<II")  # the size of what follows, and its checksum


def packed(counts: Mapping[SourceLocation, int], room: int) -> bytes:
    """The most frequent places with the numbers of their samples, in at most so many bytes."""
    most = Counter(counts).most_common(_MOST_PLACES)
    while True:
        text = json.dumps([[place.text[:_MOST_TEXT], place.what, number] for place, number in most]).encode()
        if _HEAD.size + len(text) <= room:
            return _HEAD.pack(len(text), zlib.crc32(text)) + text
        most.pop()


def unpacked(data: bytes) -> dict[SourceLocation, int]:
    """What `packed` has made; empty where it is not whole, as it may be written at this moment."""
    try:
        size, checksum = _HEAD.unpack_from(data)
        text = data[_HEAD.size : _HEAD.size + size]
        if not size or len(text) != size or zlib.crc32(text) != checksum:
            return {}
        return {SourceLocation(str(text), str(what)): int(number) for text, what, number in json.loads(text)}
    except (struct.error, ValueError, TypeError):
        return {}


class WorkerLooks:
    """Looks at the stack of the thread that makes it, from another one, while that fetches. `put` tells the samples,
    `nap` waits as that of the core in C."""

    def __init__(
        self,
        put: Callable[[Mapping[SourceLocation, int]], None],
        nap: Callable[[int, bool], None] | None = None,
    ) -> None:
        self.fetching = False
        """Whether the thread fetches a batch now."""
        self._put, self._nap = put, nap
        self._thread = threading.get_ident()
        self._counts: Counter[SourceLocation] = Counter()
        self._looks = 0

    def start(self) -> None:
        """Starts the thread, which ends with the process."""
        threading.Thread(target=self._run, name="ddlprof", daemon=True).start()

    def _run(self) -> None:
        sys.settrace(None)  # as the helper thread
        sys.setprofile(None)
        with suppress(Exception):  # the batches are then made at unknown lines
            from ddlprof.collect.process.stacks import CodeLocator

            places, since = CodeLocator(), time.perf_counter()
            while True:
                often = self._looks < _FIRST_LOOKS
                self._pause(_FIRST_LOOK_S if often else _LOOK_S * sparseness(time.perf_counter() - since))
                if self.fetching:
                    self.look(places)

    def _pause(self, seconds: float) -> None:
        if self._nap is not None and self._thread == threading.main_thread().ident:
            self._nap(int(seconds * 1e6), True)
        else:
            time.sleep(seconds)

    def look(self, places: Any) -> None:
        """Takes one sample."""
        from ddlprof.collect.process.data_places import data_places

        self._looks += 1
        found = data_places(places, stack_of_thread(self._thread))
        if found:
            self._counts.update(found)
            self._put(self._counts)


class _Lines(Protocol):
    def get_lines(self, worker: int) -> dict[SourceLocation, int]:
        """The numbers of samples of a worker so far."""


class _Watched:
    """The workers of one iterator."""

    def __init__(self, owner: Any, lines: _Lines, workers: int) -> None:
        self.owner = weakref.ref(owner)
        self.lines = lines
        self.seen: list[dict[SourceLocation, int]] = [{} for _ in range(workers)]

    def new(self) -> Counter[SourceLocation]:
        """The samples since the last call."""
        more: Counter[SourceLocation] = Counter()
        for worker, seen in enumerate(self.seen):
            now = self.lines.get_lines(worker)
            if now:
                more.update({place: number - seen.get(place, 0) for place, number in now.items()})
                self.seen[worker] = now
        return +more


class WorkerLines:
    """The samples of all workers of a session. The training thread adds workers, the helper thread takes samples."""

    def __init__(self) -> None:
        self._watched: deque[_Watched] = deque()

    def add(self, owner: Any, lines: _Lines, workers: int) -> None:
        """Reads the samples of these workers while `owner` lives, and once more after that."""
        self._watched.append(_Watched(owner, lines, workers))

    def take(self) -> dict[SourceLocation, int]:
        """The samples since the last call."""
        found: Counter[SourceLocation] = Counter()
        for _ in range(len(self._watched)):
            watched = self._watched.popleft()
            lives = watched.owner() is not None
            with suppress(OSError):  # its file is gone
                found.update(watched.new())
                if lives:
                    self._watched.append(watched)
        return dict(found)
