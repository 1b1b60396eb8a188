"""Measures each fetch inside a DataLoader worker, and passes the figures to the training process.

The figures go through a small file and not with the batches, so that no error in here affects a batch. `WorkerInit`
takes the place of the user's `worker_init_fn` and calls it, so that it reaches workers started by fork, spawn and
forkserver alike. The training process needs no torch to import this module.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ddlprof.base.kept_file import KeptFile
from ddlprof.base.real_process import getpid
from ddlprof.base.real_time import time
from ddlprof.collect import core
from ddlprof.collect.install import replace
from ddlprof.collect.loader.fetch_meter import Delivery, Fetch, FetchMeter
from ddlprof.collect.process.worker_lines import WorkerLooks, packed, unpacked
from ddlprof.model.source_locations import SourceLocation
from ddlprof.torch_private import loader

_ENTRY = struct.Struct("<7q")  # key, then the fields of Fetch
_BEGIN = struct.Struct("<q")
_NOT_COUNTED = -1
_SLOTS = 1024
"""The number of entries per worker: more than a worker fetches before the helper thread reads them."""
_LINES_BYTES = 8192
_BEGIN_AT = _SLOTS * _ENTRY.size
_LINES_AT = _BEGIN_AT + _ENTRY.size
_WORKER_BYTES = _LINES_AT + _LINES_BYTES
"""A worker's slots, one more for the start of its current fetch (0: none), and its stack samples."""


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
        self.remove: Callable[[], None] = lambda: None
        """Removes the file, in the process that made it; its content stays readable through open descriptors. It is
        also removed when the ring is freed, and at the end of the process."""
        self._shifts: dict[tuple[int, int], int] = {}
        """The slot of a fetch minus its number, by worker and generation."""

    @classmethod
    def create(cls, workers: int) -> Ring:
        """A new ring in the temporary directory. Raises OSError if the file cannot be created or written."""
        import tempfile  # late: a script without workers has no use for it

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
        ring.remove = weakref.finalize(ring, _remove, path, getpid())
        return ring

    def put(self, worker: int, generation: int, number: int, fetch: Fetch, slot: int | None = None) -> None:
        """Called in the worker after its `number`-th fetch in this generation.

        `slot`: its number among all fetches of this worker, so that an epoch takes no slot of the one before.
        """
        values = (_NOT_COUNTED if value is None else value for value in fetch)
        offset = worker * _WORKER_BYTES + (number if slot is None else slot) % _SLOTS * _ENTRY.size
        self._file.write_at(_ENTRY.pack(_key(generation, number), *values), offset)
        self.put_begin(worker, 0)

    def put_begin(self, worker: int, begin: int) -> None:
        """Called in the worker when it begins a fetch."""
        self._file.write_at(_BEGIN.pack(begin), worker * _WORKER_BYTES + _BEGIN_AT)

    def span_of(self, worker: int, generation: int, number: int) -> tuple[int, int | None] | None:
        """Begin and end of the fetch of this number, in ns, without an end while it is under way; None: not begun."""
        try:
            fetch = self.get(worker, generation, number)
        except LookupError:  # none in this generation: others are of the next
            return None
        if fetch is not None:
            return fetch.begin, fetch.end
        begin = self.get_begin(worker)
        return (begin, None) if begin else None

    def get_begin(self, worker: int) -> int:
        """When the worker began its current fetch, in ns; 0 if it has none."""
        (begin,) = _BEGIN.unpack(self._file.read_at(_BEGIN.size, worker * _WORKER_BYTES + _BEGIN_AT))
        return int(begin)

    def put_lines(self, worker: int, counts: Mapping[SourceLocation, int]) -> None:
        """Called in the worker: how many of its stack samples there were at each place so far."""
        self._file.write_at(packed(counts, _LINES_BYTES), worker * _WORKER_BYTES + _LINES_AT)

    def get_lines(self, worker: int) -> dict[SourceLocation, int]:
        """What the worker has put last; empty if there is nothing whole."""
        return unpacked(self._file.read_at(_LINES_BYTES, worker * _WORKER_BYTES + _LINES_AT))

    def get(self, worker: int, generation: int, number: int) -> Fetch | None:
        """The fetch of this number; None if the worker has not written it.

        Raises LookupError if a later fetch has already overwritten it.
        """
        key = _key(generation, number)
        shift = self._shifts.get((worker, generation), None if generation else 0)
        if shift is None:
            found, *values = self._search(worker, generation, number)
        else:
            offset = worker * _WORKER_BYTES + (number + shift) % _SLOTS * _ENTRY.size
            found, *values = _ENTRY.unpack(self._file.read_at(_ENTRY.size, offset))
        if found > key:
            raise LookupError("fetched too long before it was asked for")
        if found < key:
            return None
        begin, end, blocked, cpu, asked, storage = values
        counted = asked != _NOT_COUNTED
        return Fetch(begin, end, blocked, cpu, asked if counted else None, storage if counted else None)

    def _search(self, worker: int, generation: int, number: int) -> tuple[int, ...]:
        """The entry of this fetch, or else the latest entry; learns the slots that its generation uses."""
        entries = list(_ENTRY.iter_unpack(self._file.read_at(_SLOTS * _ENTRY.size, worker * _WORKER_BYTES)))
        key = _key(generation, number)
        for slot, entry in enumerate(entries):
            if entry[0] == key:
                self._shifts[worker, generation] = slot - number
                return entry
        return max(entries, key=lambda entry: int(entry[0]))


def _remove(path: str, maker: int) -> None:
    if maker == getpid():  # a child made by fork may end long before
        with contextlib.suppress(OSError):
            os.unlink(path)


def of_worker(ring: Ring, worker: int, generation: int, number: int, begin: int, end: int) -> Delivery | None:
    """The delivery of a wait from `begin` to `end` (ns) for the worker's fetch of this number: the shares of the wait
    in which the worker was blocked and working (the rest is hand-over), and its costs. None if it left no figures.

    A worker in its next fetch is too busy to hand over the batch: that part of the wait is split in the same ratio.
    """
    fetch = ring.get(worker, generation, number)
    if fetch is None:
        return None
    following = ring.span_of(worker, generation, number + 1)
    overlap = max(0, min(fetch.end, end) - max(fetch.begin, begin))
    if following is not None:
        next_begin, next_end = following
        overlap += max(0, min(end if next_end is None else next_end, end) - max(next_begin, fetch.end, begin))
    share = overlap / max(1, end - begin)
    blocked_share = fetch.blocked / max(1, fetch.end - fetch.begin)
    return share * blocked_share, share * (1 - blocked_share), fetch.cpu, fetch.asked, fetch.storage, fetch.blocked


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
        looks = WorkerLooks(lambda counts: ring.put_lines(worker, counts), core.C and core.C.nap)
        looks.start()
        original: Any = getattr(kind, loader.CREATE_FETCHER)
        generation, slots = -1, itertools.count()

        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            nonlocal generation
            generation += 1
            fetcher: Any = original(*args, **kwargs)
            fetcher.fetch = _timed(fetcher.fetch, meter, ring, worker, generation, slots, looks)
            return fetcher

        replace(kind, loader.CREATE_FETCHER, staticmethod(create_fetcher))
        _hide_our_frame()


def _hide_our_frame() -> None:
    """Removes our frames from the tracebacks of errors in the data set, which reach the script as text."""
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


def _timed(
    fetch: Callable[..., Any],
    meter: FetchMeter,
    ring: Ring,
    worker: int,
    generation: int,
    slots: Iterator[int],
    looks: WorkerLooks,
) -> Any:
    number = 0

    def timed_fetch(*args: Any) -> Any:
        nonlocal number
        begin, slot = None, next(slots)
        with contextlib.suppress(Exception):  # /proc of a system like Linux, a disk that fails
            begin = meter.begin()
            ring.put_begin(worker, time.perf_counter_ns())
        looks.fetching = True
        try:
            return fetch(*args)
        finally:
            looks.fetching = False
            with contextlib.suppress(Exception):
                if begin is not None:
                    ring.put(worker, generation, number, meter.fetch(begin, meter.end()), slot)
            number += 1

    return timed_fetch
