"""`DataLoader`: the time blocked in `next`, and what the workers say of the batch that ended the wait."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from ddlprof.collect.fetch_meter import Fetch, FetchMeter, MeterReading
from ddlprof.collect.hooks import Uninstall, all_of, batch_size, replace
from ddlprof.collect.loader_worker import Ring, WorkerInit
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.samples import drawn_by, loaded_samples
from ddlprof.model.events import Kind

Delivery = tuple[float, float, int, int | None, int | None]
"""What the end of a wait says of the batch, as `Kind.DATA_END` has it."""


DeliveredLater = Callable[[], "Delivery | None"]
"""Called by the helper thread: what need not be worked out in the training thread."""


class _Workers:
    """Which fetch of which worker made a batch: fetches and batches of one worker come in the same order."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.generation = 0
        self._delivered: dict[int, int] = {}

    def restart(self) -> None:
        """Persistent workers begin a new epoch."""
        self.generation += 1
        self._delivered.clear()

    def delivered(self, before: dict[int, int], after: Any) -> tuple[Fetch, int] | None:
        """The fetch of the batch that left the table of open tasks, and when its worker began the next.

        None if it cannot be told which batch that is.
        """
        found = None
        gone = [worker for index, worker in before.items() if index not in after]
        for worker in gone:
            number = self._delivered.get(worker, 0)
            self._delivered[worker] = number + 1
            fetch = self.ring.get(worker, self.generation, number)
            following = self.ring.get(worker, self.generation, number + 1)
            found = fetch and (fetch, following.begin if following else self.ring.get_begin(worker))
        return found if len(gone) == 1 else None


def _delivery(fetch: Fetch, next_begin: int, begin: int, end: int) -> Delivery:
    """Shares of the wait `begin..end` in which the worker was blocked and working (the rest is hand-over), and costs.

    A worker that has begun its next fetch is too busy to hand over the batch: that wait is split in the same ratio.
    """
    overlap = max(0, min(fetch.end, end) - max(fetch.begin, begin))
    if next_begin:
        overlap += max(0, end - max(next_begin, fetch.end, begin))
    share = overlap / max(1, end - begin)
    blocked_share = fetch.blocked / max(1, fetch.end - fetch.begin)
    return share * blocked_share, share * (1 - blocked_share), fetch.cpu, fetch.asked, fetch.storage


class Loaders:
    """Numbers for loaders, and the workers' figures for their iterators."""

    def __init__(self) -> None:
        self.ids: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.iterator_ids: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.workers: weakref.WeakKeyDictionary[Any, _Workers] = weakref.WeakKeyDictionary()
        self._counter = itertools.count()

    def id_of(self, loader: Any) -> int:
        if loader not in self.ids:
            self.ids[loader] = next(self._counter)
        return self.ids[loader]


class _Wrappers:
    """The wrappers of one installation; `nested` while the training thread is inside one of them."""

    def __init__(self, recorder: Recorder, learn: Callable[[Any], None], loaders: Loaders) -> None:
        self.recorder = recorder
        self.learn = learn
        self.loaders = loaders
        self.meter = FetchMeter(whole_process=False)
        self.nested = False

    def iterate(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """For `DataLoader.__iter__`, which starts the workers."""

        def __iter__(loader: Any) -> Any:
            ident = self.loaders.id_of(loader)
            if self.nested or not self.recorder.emit(Kind.DATA_BEGIN, ident):
                return original(loader)
            self.nested = True
            self.recorder.emit(Kind.EPOCH, ident)
            try:
                iterator = original(loader)
                self.loaders.iterator_ids[iterator] = ident
                return iterator
            finally:
                self.nested = False
                self.recorder.emit(Kind.DATA_END, ident, None, 0)
                self.learn(loader)

        return __iter__

    def advance(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """For `__next__` of the iterators, which waits for a batch."""

        def __next__(iterator: Any) -> Any:
            ident = self.loaders.iterator_ids.get(iterator, -1)
            if self.nested or not self.recorder.emit(Kind.DATA_BEGIN, ident):
                return original(iterator)
            self.nested = True
            begin = time.perf_counter_ns()
            before = _before(iterator, self.meter)
            self.recorder.charge(time.perf_counter_ns() - begin)
            samples: int | None = 0
            try:
                batch = original(iterator)
                samples = _samples(batch, iterator)
                return batch
            finally:
                self.nested = False
                begin = time.perf_counter_ns()
                delivery = _after(iterator, self.meter, before, self.loaders)
                self.recorder.charge(time.perf_counter_ns() - begin)
                self.recorder.emit(Kind.DATA_END, ident, delivery, samples)

        return __next__

    def initialise(self, original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """For the iterator with workers: sends `WorkerInit` along."""

        def __init__(iterator: Any, loader: Any) -> None:
            workers = _prepare(loader) if self.recorder.active else None
            if workers is None:
                original(iterator, loader)
                return
            user = loader.worker_init_fn
            loader.worker_init_fn = WorkerInit(user, workers.ring.path, loader.num_workers)
            try:
                original(iterator, loader)
            finally:
                loader.worker_init_fn = user
                weakref.finalize(iterator, workers.ring.close)
            self.loaders.workers[iterator] = workers

        return __init__

    def reset(self, original: Callable[..., None]) -> Callable[..., None]:
        """For persistent workers at the begin of an epoch."""

        def _reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            if not first_iter and iterator in self.loaders.workers:
                self.loaders.workers[iterator].restart()
            original(iterator, loader, first_iter)

        return _reset


def install(recorder: Recorder, learn: Callable[[Any], None], loaders: Loaders) -> Uninstall:
    """`learn(loader)` is called whenever a loader is iterated by the training thread; `loaders` are those known."""
    from torch.utils.data import DataLoader
    from torch.utils.data import dataloader as module

    wrappers = _Wrappers(recorder, learn, loaders)
    base, several = module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter
    return all_of(
        replace(DataLoader, "__iter__", wrappers.iterate(DataLoader.__iter__)),
        replace(base, "__next__", wrappers.advance(base.__next__)),
        replace(several, "__init__", wrappers.initialise(several.__init__)),
        replace(several, "_reset", wrappers.reset(several._reset)),
    )


def _prepare(loader: Any) -> _Workers | None:
    try:
        return _Workers(Ring.create(loader.num_workers))
    except OSError:  # no room or no right in the temporary directory: no split
        return None


def _samples(batch: Any, iterator: Any) -> int | None:
    try:
        return loaded_samples(batch, batch_size(batch), drawn_by(iterator))
    except Exception:  # whatever a user's batch type does
        return None


def _before(iterator: Any, meter: FetchMeter) -> Any:
    try:
        if iterator._num_workers:
            return time.perf_counter_ns(), {index: info[0] for index, info in iterator._task_info.items()}
        return meter.begin() if meter.available else None
    except Exception:  # internals of another torch version: nothing is known of the batch
        return None


def _after(iterator: Any, meter: FetchMeter, before: Any, loaders: Loaders) -> DeliveredLater | None:
    try:
        if before is None:
            return None
        if not iterator._num_workers:
            return partial(_own_delivery, meter, before, meter.end())
        workers = loaders.workers.get(iterator)
        if workers is None:
            return None
        begin, tasks = before
        found = workers.delivered(tasks, iterator._task_info)
        return None if found is None else partial(_delivery, *found, begin, time.perf_counter_ns())
    except Exception:
        return None


def _own_delivery(meter: FetchMeter, begin: MeterReading, end: MeterReading) -> Delivery | None:
    """Of a batch that the training thread made itself."""
    try:
        fetch = meter.fetch(begin, end)
        return _delivery(fetch, 0, fetch.begin, fetch.end)
    except Exception:  # /proc of a system like Linux
        return None
