"""Inside a DataLoader worker: measures each fetch and leaves the figures where the training process finds them.

The figures travel through a small file, beside the batches and not with them: whatever goes wrong
here, the batch is untouched. `WorkerInit` takes the place of the user's `worker_init_fn` (which it calls), so that
it reaches workers started by fork, spawn and forkserver alike; the training process needs no torch for this module.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

from ddlprof.collect.install import replace
from ddlprof.collect.loader.fetch_meter import Fetch, FetchMeter
from ddlprof.collect.process.kept_file import KeptFile
from ddlprof.collect.process.real_time import time
from ddlprof.collect.torch_private import loader

_ENTRY = struct.Struct("<7q")  # key, then the fields of Fetch
_BEGIN = struct.Struct("<q")
_NOT_COUNTED = -1
_SLOTS = 1024
"""Per worker: more than any sensible prefetch factor, and than are fetched before the helper thread reads them."""
_WORKER_BYTES = (_SLOTS + 1) * _ENTRY.size
"""A worker's slots, and one more for the start of its current fetch (0: none)."""


def _key(generation: int, number: int) -> int:
    return (generation << 40) | (number + 1)


class Ring:
    """The last fetches of each worker of one loader iteration, shared through a file.

    It is not mapped into memory: touching a page for which the disk has no room (or which a cleaner of the temporary
    directory cut off) would kill the process, where a write only fails.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = KeptFile(path, os.O_RDWR)
        self.close: Callable[[], None] = self._file.close
        """Closes the file; where it was made, also removes it, which happens anyway once nobody has the ring."""

    @classmethod
    def create(cls, workers: int) -> Ring:
        """A new ring in the temporary directory. Raises OSError if there is no room for it."""
        known = tempfile.tempdir
        descriptor, path = tempfile.mkstemp(prefix="ddlprof-loader-")
        tempfile.tempdir = known  # the script may still choose another
        try:
            with open(descriptor, "wb") as file:
                file.write(bytes(workers * _WORKER_BYTES))
            ring = cls(path)
        except OSError:
            os.unlink(path)
            raise
        ring.close = weakref.finalize(ring, _remove, ring._file, path, os.getpid())
        return ring

    def put(self, worker: int, generation: int, number: int, fetch: Fetch) -> None:
        """Called in the worker after its `number`-th fetch since it was (re)started."""
        offset = worker * _WORKER_BYTES + number % _SLOTS * _ENTRY.size
        values = (_NOT_COUNTED if value is None else value for value in fetch)
        self._file.write_at(_ENTRY.pack(_key(generation, number), *values), offset)
        self.put_begin(worker, 0)

    def put_begin(self, worker: int, begin: int) -> None:
        """Called in the worker when it begins a fetch."""
        self._file.write_at(_BEGIN.pack(begin), (worker + 1) * _WORKER_BYTES - _ENTRY.size)

    def get_begin(self, worker: int) -> int:
        """When the worker began the fetch it is at; 0 if it is at none."""
        (begin,) = _BEGIN.unpack(self._file.read_at(_BEGIN.size, (worker + 1) * _WORKER_BYTES - _ENTRY.size))
        return int(begin)

    def get(self, worker: int, generation: int, number: int) -> Fetch | None:
        """That fetch, or None where it is not there."""
        offset = worker * _WORKER_BYTES + number % _SLOTS * _ENTRY.size
        key, begin, end, blocked, cpu, asked, storage = _ENTRY.unpack(self._file.read_at(_ENTRY.size, offset))
        if key != _key(generation, number):
            return None
        counted = asked != _NOT_COUNTED
        return Fetch(begin, end, blocked, cpu, asked if counted else None, storage if counted else None)


def _remove(file: KeptFile, path: str, maker: int) -> None:
    file.close()
    if maker == os.getpid():  # a child made by fork may end long before
        with contextlib.suppress(OSError):
            os.unlink(path)


class WorkerInit:
    """A picklable `worker_init_fn`: the user's own, then measuring this worker's fetches."""

    def __init__(self, user: Callable[[int], None] | None, path: str) -> None:
        self.user = user
        self.path = path

    def __call__(self, worker: int) -> None:
        with contextlib.suppress(Exception):  # fail open: the batches then carry no split
            self._install(worker)
        if self.user is not None:
            self.user(worker)

    def _install(self, worker: int) -> None:
        kind = loader.fetchers()
        meter = FetchMeter(whole_process=True)
        if not meter.available:
            return
        ring = Ring(self.path)
        original: Any = getattr(kind, loader.CREATE_FETCHER)
        generation = -1

        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            nonlocal generation
            generation += 1
            fetcher: Any = original(*args, **kwargs)
            fetcher.fetch = _timed(fetcher.fetch, meter, ring, worker, generation)
            return fetcher

        replace(kind, loader.CREATE_FETCHER, staticmethod(create_fetcher))
        _hide_our_frame()


def _hide_our_frame() -> None:
    """The traceback of an exception in the data set reaches the script as text, which is as it is without us."""
    module = loader.worker_module()
    original = getattr(module, loader.TAKE_ERROR)

    def wrap(*args: Any, **kwargs: Any) -> Any:
        traceback = sys.exc_info()[2]
        while traceback is not None:
            while traceback.tb_next is not None and traceback.tb_next.tb_frame.f_code.co_filename == __file__:
                traceback.tb_next = traceback.tb_next.tb_next
            traceback = traceback.tb_next
        return original(*args, **kwargs)

    replace(module, loader.TAKE_ERROR, wrap)


def _timed(fetch: Callable[..., Any], meter: FetchMeter, ring: Ring, worker: int, generation: int) -> Any:
    number = 0

    def timed_fetch(*args: Any) -> Any:
        nonlocal number
        begin = None
        with contextlib.suppress(Exception):  # /proc of a system like Linux, a disk that fails
            begin = meter.begin()
            ring.put_begin(worker, time.perf_counter_ns())
        try:
            return fetch(*args)
        finally:
            with contextlib.suppress(Exception):
                if begin is not None:
                    ring.put(worker, generation, number, meter.fetch(begin, meter.end()))
            number += 1

    return timed_fetch
