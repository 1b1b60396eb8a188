"""Hooks for `DataLoader`: the time blocked in `next`, and the workers' figures for the batch that ended the wait."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from ddlprof.base.guarded import dead_reference
from ddlprof.base.real_time import time
from ddlprof.collect.core import plain_size
from ddlprof.collect.drops import SAMPLES, SPLIT, Drops
from ddlprof.collect.install import Uninstall, all_of, fail_open, replace
from ddlprof.collect.loader.batch import SamplesPerBatch, batch_size, drawn_by, loaded_samples
from ddlprof.collect.loader.fetch_meter import DeliveredLater, Delivery
from ddlprof.collect.loader.repeats import batches_looked_at
from ddlprof.collect.loader.waits import SEEN, Metering, Waits
from ddlprof.collect.loader.worker import Ring, WorkerInit, of_worker
from ddlprof.collect.recorder import FIRST_STEPS, Recorder
from ddlprof.model.events import Kind
from ddlprof.torch_private.loader import RESET, iterators, number_of_workers, open_tasks, stateful_iterator

_DATA_BEGIN, _DATA_END = int(Kind.DATA_BEGIN), int(Kind.DATA_END)  # an enumeration's attribute is slow to look up
_UNKNOWN = -1
"""The number of all loaders that cannot be told apart."""


class _Workers:
    """Finds the fetch that made a batch: the fetches and the batches of one worker come in the same order."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.generation = 0
        self.delivered: dict[int, int] = {}
        """The number of batches that each worker has delivered in this epoch."""

    def restart(self) -> None:
        """Called when persistent workers begin a new epoch."""
        self.generation += 1
        self.delivered.clear()


class WorkersWait:
    """A wait for a batch that worker processes make. It has the methods `begin` and `end` of `Metering`."""

    __slots__ = ("_before", "_began_ns", "_drops", "_fetching", "_iterator", "_workers")

    def __init__(self, loaders: Loaders, iterator: Any) -> None:
        self._fetching, self._drops = loaders.recorder.fetching, loaders.recorder.drops
        self._iterator: Callable[[], Any]
        self._workers: _Workers | None = None
        try:
            self._iterator = weakref.ref(iterator)
            self._workers = loaders.workers.get(iterator)
        except TypeError:  # a subclass's own, without weak references; nobody keeps what is known of it
            self._iterator = lambda: iterator
        self._before: dict[int, tuple[int, ...]] = {}
        self._began_ns = 0

    def begin(self) -> None:
        """Notes the batches under way, and the workers that make them."""
        if self._workers is None:
            return
        sampled = self._fetching.begin()
        try:
            self._before = dict(open_tasks(self._iterator()))
        except Exception as error:  # internals of another torch version: nothing is known of the batch
            self._drops.add(SPLIT, error)
        self._began_ns = time.perf_counter_ns()
        self._fetching.end(sampled)

    def end(self) -> DeliveredLater | None:
        """Returns the worker's figures for the batch that ended the wait, which has left the table of open tasks.

        None if it is not clear which batch that is.
        """
        workers = self._workers
        if workers is None or not self._before:
            return None
        end_ns = time.perf_counter_ns()
        sampled = self._fetching.begin()
        before, self._before = self._before, {}
        later = None
        try:
            gone = before.keys() - open_tasks(self._iterator()).keys()
            for index in gone:
                worker = before[index][0]
                number = workers.delivered.get(worker, 0)
                workers.delivered[worker] = number + 1
                fetch = workers.ring, worker, workers.generation, number
                later = partial(_delivery, self._drops, *fetch, self._began_ns, end_ns)
            if len(gone) != 1:
                later = None
        except Exception as error:
            self._drops.add(SPLIT, error)
        self._fetching.end(sampled)
        return later


def _delivery(drops: Drops, *fetch_and_wait: Any) -> Delivery | None:
    """`of_worker`, in the helper thread."""
    try:
        return of_worker(*fetch_and_wait)
    except Exception as error:  # a disk that fails
        drops.add(SPLIT, error)
        return None


class _Iterator:
    """Facts about one iterator of a loader."""

    __slots__ = ("drawn", "draws", "ident", "looks", "wait")

    def __init__(self, ident: int, iterator: Any, loaders: Loaders) -> None:
        self.ident = ident
        """The number of the loader, in events."""
        self.drawn = drawn_by(iterator)
        """The number of samples that the sampler draws for a batch, read once an epoch; None if it is not fixed."""
        self.draws = self.drawn.samples if self.drawn is not None and self.drawn.samples > 1 else None
        """A batch of this size has as many samples, without further checks; None if every batch must be checked."""
        self.looks = FIRST_STEPS
        """Batches are looked at until so many steps have ended."""
        self.wait = WorkersWait(loaders, iterator) if number_of_workers(iterator) else Metering(loaders.waits)


class Loaders:
    """The wrappers of a session, and what they know of loaders and of the workers of their iterators."""

    def __init__(self, waits: Waits, learn: Callable[[Any], None], look: Callable[[Any], None]) -> None:
        """`learn(loader)` is called whenever a loader is iterated by the training thread.

        `look(batch)` is called with each batch of the first steps.
        """
        self.waits = waits
        self.recorder = waits.recorder
        self.learn = learn
        self.look = fail_open(look, waits.recorder)
        self.iterators: weakref.WeakKeyDictionary[Any, _Iterator] = weakref.WeakKeyDictionary()
        self.workers: weakref.WeakKeyDictionary[Any, _Workers] = weakref.WeakKeyDictionary()
        self._last: Any = None
        self._last_iterator: Callable[[], Any] = dead_reference
        """The iterator that was called last; `_last` has its facts, because a look-up in `iterators` takes longer."""

    def iterate(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Replaces `DataLoader.__iter__`, which starts the workers."""
        import torch

        @functools.wraps(original)
        def __iter__(loader: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(loader)
            ident = self._id_of(loader)
            if self.waits.inside and not self.waits.left.behind(sys._getframe()):
                return original(loader)
            begun = True
            try:
                begun = self.recorder.emit(Kind.DATA_BEGIN, ident)
                if not begun:
                    return original(loader)
                self.waits.inside = True
                self.recorder.emit(Kind.EPOCH, ident)
                iterator = original(loader)
                with contextlib.suppress(TypeError):  # a subclass's own iterator, without weak references
                    known = self.iterators[iterator] = _Iterator(ident, iterator, self)
                    known.looks = max(FIRST_STEPS, batches_looked_at(loader))
                # Persistent workers have one iterator for all epochs.
                self._last, self._last_iterator = None, dead_reference
                return iterator
            finally:
                if begun:
                    self.waits.inside = False
                    self.recorder.emit(Kind.DATA_END, ident, None, 0)
                    self.learn(loader)

        self.waits.left.add(__iter__)
        return __iter__

    def advance(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Replaces `__next__` of the iterators, which waits for a batch."""
        import torch

        is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # the recorder hears of any other
        waits, recorder, look = self.waits, self.recorder, self.look

        def __next__(iterator: Any) -> Any:
            if is_dynamo_compiling():
                return original(iterator)
            if waits.inside and not waits.left.behind(sys._getframe()):
                return self._advance_inside(original, iterator)
            known = self._last if self._last_iterator() is iterator else self._known(iterator)
            samples: int | None = 0
            begun = True  # until `emit` has returned: it may have recorded the event when an exception arrives
            try:
                begun = recorder.emit(_DATA_BEGIN, known.ident)
                if not begun:
                    return original(iterator)
                waits.inside = True
                known.wait.begin()
                batch = original(iterator)
                samples = plain_size(batch)
                if samples is None or (known.draws is not None and samples != known.draws):
                    samples = _samples(batch, known.drawn, recorder)
                if recorder.boundaries <= known.looks:
                    look(batch)
                return batch
            finally:
                if begun:
                    waits.inside = False
                    delivery = None
                    try:
                        delivery = known.wait.end()
                    finally:
                        recorder.emit(_DATA_END, known.ident, delivery, samples)

        waits.left.add(__next__)
        setattr(__next__, SEEN, True)
        return __next__

    def _id_of(self, loader: Any) -> int:
        try:
            return self.waits.id_of(loader)
        except TypeError:  # a subclass that compares its objects has no hash
            return _UNKNOWN

    def _known(self, iterator: Any) -> _Iterator:
        try:
            known = self.iterators[iterator]
        except (KeyError, TypeError):
            known = _Iterator(_UNKNOWN, iterator, self)
        with contextlib.suppress(TypeError):  # as in `iterate`
            self.iterators[iterator] = known
            self._last, self._last_iterator = known, weakref.ref(iterator, self._forget)
        return known

    def _forget(self, iterator: Any) -> None:
        """Forgets what is known of an iterator that is gone, and with that the file of its workers."""
        if iterator is self._last_iterator:
            self._last, self._last_iterator = None, dead_reference

    def _advance_inside(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Advances an iterator inside another wait, in which the workers' part is measured separately."""
        own = self.waits.own
        if own is None or not number_of_workers(iterator) or not self.waits.in_training_thread():
            return original(iterator)
        own.pause()
        wait = WorkersWait(self, iterator)
        wait.begin()
        try:
            return original(iterator)
        finally:
            own.resume(wait.end())

    def initialise(self, original: Callable[..., None]) -> Callable[..., None]:
        """Initialises the iterator with workers: sends `WorkerInit` along."""

        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            workers = self.recorder.charge(lambda: _prepare(loader, self.recorder)) if self.recorder.active else None
            if workers is None:
                original(iterator, loader, *args, **kwargs)
                return
            user = loader.worker_init_fn
            loader.worker_init_fn = WorkerInit(user, workers.ring.path)
            try:
                original(iterator, loader, *args, **kwargs)
            finally:
                loader.worker_init_fn = user
            self.recorder.workers_started = True
            with contextlib.suppress(TypeError):  # as in `_id_of`
                self.workers[iterator] = workers

        return __init__

    def reset(self, original: Callable[..., None]) -> Callable[..., None]:
        """Resets persistent workers at the start of an epoch."""

        def _reset(iterator: Any, loader: Any, first_iter: bool = False, *args: Any, **kwargs: Any) -> None:
            if not first_iter and iterator in self.workers:
                self.workers[iterator].restart()
            original(iterator, loader, first_iter, *args, **kwargs)

        return _reset


def install(loaders: Loaders) -> Uninstall:
    """Hooks torch's own loaders."""
    from torch.utils.data import DataLoader
    from torch.utils.data import dataloader as module

    base, _, several = iterators(module)
    return all_of(
        replace(DataLoader, "__iter__", loaders.iterate(DataLoader.__iter__)),
        replace(base, "__next__", loaders.advance(base.__next__)),
        replace(several, "__init__", loaders.initialise(several.__init__)),
        replace(several, RESET, loaders.reset(getattr(several, RESET))),
    )


def install_stateful(loaders: Loaders, module: Any) -> Uninstall:
    """Torchdata's StatefulDataLoader, in the module given, is a copy of torch's; its iterators have their base."""
    loader, several = module.StatefulDataLoader, stateful_iterator(module)
    return all_of(
        replace(loader, "__iter__", loaders.iterate(loader.__iter__)),
        replace(several, "__init__", loaders.initialise(several.__init__)),
        replace(several, RESET, loaders.reset(getattr(several, RESET))),
    )


def _prepare(loader: Any, recorder: Recorder) -> _Workers | None:
    try:
        workers = _Workers(Ring.create(loader.num_workers))
        recorder.worker_lines.add(workers, Ring(workers.ring.path), loader.num_workers)  # its own, so that it may stay
        return workers
    except OSError as error:  # no room or no right
        why = f"{error.strerror or error} in the temporary directory; set TMPDIR to another"
    except Exception as error:  # a script that put something else in the place of os.open
        why = f"{type(error).__name__}: {error}"
    recorder.note("data", f"not split into fetch and prep: {why}")
    return None


def _samples(batch: Any, drawn: SamplesPerBatch | None, recorder: Recorder) -> int | None:
    try:
        return loaded_samples(batch, batch_size(batch), drawn)
    except Exception as error:  # whatever a user's batch type does
        recorder.drops.add(SAMPLES, error)
        return None
