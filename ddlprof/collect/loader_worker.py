"""Inside a DataLoader worker: times each fetch and leaves the figures where the training process finds them.

The figures travel through a small memory-mapped file, beside the batches and not with them: whatever goes wrong
here, the batch is untouched. `WorkerInit` takes the place of the user's `worker_init_fn` (which it calls), so that
it reaches workers started by fork, spawn and forkserver alike; the training process needs no torch for this module.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddlprof.collect.blocked import BlockedClock

_ENTRY = struct.Struct("<4q")  # key, begin, end, blocked
_SLOTS = 256
"""Per worker; more than any sensible prefetch factor."""
_WORKER_BYTES = (_SLOTS + 1) * _ENTRY.size
"""A worker's slots, and one more for the begin of the fetch it is at (0: at none)."""


def _key(generation: int, number: int) -> int:
    return (generation << 40) | (number + 1)


class Ring:
    """Times of the last fetches of each worker of one loader iteration, shared through a file."""

    def __init__(self, path: str, workers: int) -> None:
        self.path = path
        size = workers * _WORKER_BYTES
        with open(path, "r+b") as file:
            if os.fstat(file.fileno()).st_size < size:
                file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)

    @classmethod
    def create(cls, workers: int) -> Ring:
        """A new ring in the temporary directory; `close` removes it."""
        descriptor, path = tempfile.mkstemp(prefix="ddlprof-loader-")
        os.close(descriptor)
        return cls(path, workers)

    def put(self, worker: int, generation: int, number: int, begin: int, end: int, blocked: int) -> None:
        """Called in the worker after its `number`-th fetch since it was (re)started."""
        offset = worker * _WORKER_BYTES + number % _SLOTS * _ENTRY.size
        _ENTRY.pack_into(self._map, offset, _key(generation, number), begin, end, blocked)
        self.put_begin(worker, 0)

    def put_begin(self, worker: int, begin: int) -> None:
        """Called in the worker when it begins a fetch."""
        _ENTRY.pack_into(self._map, (worker + 1) * _WORKER_BYTES - _ENTRY.size, begin, 0, 0, 0)

    def get_begin(self, worker: int) -> int:
        """When the worker began the fetch it is at; 0 if it is at none."""
        begin, *_ = _ENTRY.unpack_from(self._map, (worker + 1) * _WORKER_BYTES - _ENTRY.size)
        return int(begin)

    def get(self, worker: int, generation: int, number: int) -> tuple[int, int, int] | None:
        """`(begin, end, blocked)` of that fetch, or None where it is not there."""
        offset = worker * _WORKER_BYTES + number % _SLOTS * _ENTRY.size
        key, begin, end, blocked = _ENTRY.unpack_from(self._map, offset)
        return (begin, end, blocked) if key == _key(generation, number) else None

    def close(self) -> None:
        """Unmaps and removes the file."""
        self._map.close()
        Path(self.path).unlink(missing_ok=True)


class WorkerInit:
    """A picklable `worker_init_fn`: the user's own, then the timing of this worker's fetches."""

    def __init__(self, user: Callable[[int], None] | None, path: str, workers: int) -> None:
        self.user = user
        self.path = path
        self.workers = workers

    def __call__(self, worker: int) -> None:
        with contextlib.suppress(Exception):  # fail open: the batches then carry no split
            self._install(worker)
        if self.user is not None:
            self.user(worker)

    def _install(self, worker: int) -> None:
        from torch.utils.data import _DatasetKind

        ring = Ring(self.path, self.workers)
        clock = BlockedClock(whole_process=True)
        original: Any = _DatasetKind.create_fetcher
        generation = -1

        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            nonlocal generation
            generation += 1
            fetcher: Any = original(*args, **kwargs)
            fetcher.fetch = _timed(fetcher.fetch, clock, ring, worker, generation)
            return fetcher

        _DatasetKind.create_fetcher = staticmethod(create_fetcher)  # type: ignore[method-assign]
        _hide_our_frame()


def _hide_our_frame() -> None:
    """The traceback of an exception in the data set reaches the script as text, which is as it is without us."""
    from torch.utils.data._utils import worker

    module: Any = worker
    original = module.ExceptionWrapper

    def wrap(*args: Any, **kwargs: Any) -> Any:
        traceback = sys.exc_info()[2]
        while traceback is not None:
            while traceback.tb_next is not None and traceback.tb_next.tb_frame.f_code.co_filename == __file__:
                traceback.tb_next = traceback.tb_next.tb_next
            traceback = traceback.tb_next
        return original(*args, **kwargs)

    module.ExceptionWrapper = wrap


def _timed(fetch: Callable[..., Any], clock: BlockedClock, ring: Ring, worker: int, generation: int) -> Any:
    number = 0

    def timed_fetch(*args: Any) -> Any:
        nonlocal number
        begin = clock.read()
        ring.put_begin(worker, begin.wall)
        try:
            return fetch(*args)
        finally:
            end = clock.read()
            ring.put(worker, generation, number, begin.wall, end.wall, clock.blocked_ns(begin, end))
            number += 1

    return timed_fetch
