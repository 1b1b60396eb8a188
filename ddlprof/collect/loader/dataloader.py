"""`DataLoader`: the time blocked in `next`, and what the workers say of the batch that ended the wait."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.collect.loader.batch import batch_size
from ddlprof.collect.loader.deliveries import DeliveredLater, Delivery, of_worker
from ddlprof.collect.loader.fetch_meter import Fetch
from ddlprof.collect.loader.samples import Drawn, drawn_by, loaded_samples
from ddlprof.collect.loader.waits import SEEN, Metering, Waits
from ddlprof.collect.loader.worker import Ring, WorkerInit
from ddlprof.collect.losses import SAMPLES, SPLIT
from ddlprof.collect.process.real_time import time
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.torch_private.loader import RESET, iterators, number_of_workers, open_tasks, stateful_iterator
from ddlprof.model.events import Kind

_UNKNOWN = -1
"""Stands for loaders of which no more is known."""


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


class _Iterator:
    """What is known of a loader's iterator."""

    __slots__ = ("drawn", "ident", "metering")

    def __init__(self, ident: int, iterator: Any, waits: Waits) -> None:
        self.ident = ident
        """The loader's number."""
        self.drawn = drawn_by(iterator)
        """What it draws for a batch, asked once an epoch: the sampler is the script's."""
        self.metering = None if number_of_workers(iterator) else Metering(waits)
        """Of the waits in which the training thread makes the batches itself."""


class Loaders:
    """The wrappers of a session, and what they know of loaders and of the workers of their iterators."""

    def __init__(self, waits: Waits, learn: Callable[[Any], None]) -> None:
        """`learn(loader)` is called whenever a loader is iterated by the training thread."""
        self.waits = waits
        self.recorder = waits.recorder
        self.learn = learn
        self.iterators: weakref.WeakKeyDictionary[Any, _Iterator] = weakref.WeakKeyDictionary()
        self.workers: weakref.WeakKeyDictionary[Any, _Workers] = weakref.WeakKeyDictionary()

    def iterate(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Replaces `DataLoader.__iter__`, which starts the workers."""
        import torch

        def __iter__(loader: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(loader)
            ident = self._id_of(loader)
            if self.waits.inside or not self.recorder.emit(Kind.DATA_BEGIN, ident):
                return original(loader)
            self.waits.inside = True
            self.recorder.emit(Kind.EPOCH, ident)
            try:
                iterator = original(loader)
                with contextlib.suppress(TypeError):  # a subclass's own iterator, without weak references
                    self.iterators[iterator] = _Iterator(ident, iterator, self.waits)
                return iterator
            finally:
                self.waits.inside = False
                self.recorder.emit(Kind.DATA_END, ident, None, 0)
                self.learn(loader)

        return __iter__

    def advance(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Replaces `__next__` of the iterators, which waits for a batch."""
        import torch

        def __next__(iterator: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(iterator)
            if self.waits.inside:
                return self._advance_inside(original, iterator)
            known = self._known(iterator)
            if not self.recorder.emit(Kind.DATA_BEGIN, known.ident):
                return original(iterator)
            self.waits.inside = True
            metering, before = known.metering, None
            if metering is not None:
                metering.begin()
            else:
                sampled = self.recorder.fetching.begin()
                before = self._before(iterator)
                self.recorder.fetching.end(sampled)
            samples: int | None = 0
            try:
                batch = original(iterator)
                samples = _samples(batch, known.drawn, self.recorder)
                return batch
            finally:
                self.waits.inside = False
                delivery: DeliveredLater | Delivery | None
                if metering is not None:
                    delivery = metering.end()
                else:
                    sampled = self.recorder.fetching.begin()
                    delivery = self._after(iterator, before)
                    self.recorder.fetching.end(sampled)
                self.recorder.emit(Kind.DATA_END, known.ident, delivery, samples)

        setattr(__next__, SEEN, True)
        return __next__

    def _id_of(self, loader: Any) -> int:
        try:
            return self.waits.id_of(loader)
        except TypeError:  # a subclass that compares its objects has no hash
            return _UNKNOWN

    def _known(self, iterator: Any) -> _Iterator:
        try:
            return self.iterators[iterator]
        except (KeyError, TypeError):
            known = _Iterator(_UNKNOWN, iterator, self.waits)
        with contextlib.suppress(TypeError):  # as in `iterate`
            self.iterators[iterator] = known
        return known

    def _advance_inside(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Part of another wait: only what the workers did must be told apart from it."""
        own = self.waits.own
        if own is None or not number_of_workers(iterator) or not self.waits.in_training_thread():
            return original(iterator)
        own.pause()
        before = self._before(iterator)
        try:
            return original(iterator)
        finally:
            own.resume(self._after(iterator, before))

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
                weakref.finalize(iterator, self.recorder.charge, workers.ring.close)
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

    def _before(self, iterator: Any) -> tuple[int, dict[int, int]] | None:
        """The batches under way when the wait for workers begins, and the workers that make them."""
        try:
            return time.perf_counter_ns(), {index: info[0] for index, info in open_tasks(iterator).items()}
        except Exception as error:  # internals of another torch version: nothing is known of the batch
            self.recorder.losses.add(SPLIT, error)
            return None

    def _after(self, iterator: Any, before: tuple[int, dict[int, int]] | None) -> DeliveredLater | None:
        """What the worker says of the batch that ended the wait."""
        try:
            workers = self.workers.get(iterator)
            if before is None or workers is None:
                return None
            begin, tasks = before
            found = workers.delivered(tasks, open_tasks(iterator))
            return None if found is None else partial(of_worker, *found, begin, time.perf_counter_ns())
        except Exception as error:
            self.recorder.losses.add(SPLIT, error)
            return None


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
        return _Workers(Ring.create(loader.num_workers))
    except OSError as error:  # no room or no right
        why = f"{error.strerror or error} in the temporary directory; set TMPDIR to another"
    except Exception as error:  # a script that put something else in the place of os.open
        why = f"{type(error).__name__}: {error}"
    recorder.note("data", f"not split into fetch and prep: {why}")
    return None


def _samples(batch: Any, drawn: Drawn | None, recorder: Recorder) -> int | None:
    try:
        return loaded_samples(batch, batch_size(batch), drawn)
    except Exception as error:  # whatever a user's batch type does
        recorder.losses.add(SAMPLES, error)
        return None
