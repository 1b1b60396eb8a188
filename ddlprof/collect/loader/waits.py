"""The training thread's waits for data, for DataLoaders and functions alike. Of nested waits the outermost counts.

`Waits` is the state that the hooks of one session share; a `BatchSource` is one function, or one class of iterators,
that makes batches in the training thread.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ddlprof.base.real_time import time
from ddlprof.collect.drops import SAMPLES, SPLIT
from ddlprof.collect.left_behind import Left
from ddlprof.collect.loader.batch import know
from ddlprof.collect.loader.fetch_meter import DeliveredLater, Delivery, FetchMeter, MeterReading
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind

_SHORT_NS = 250_000
"""After a wait as short as this the next is metered only now and then: metering takes up to 40 us, with cold caches."""
_ALIKE_NS = 1_000_000
"""A wait that was not metered and took less than this gets the figures of the last wait that was metered."""
_METERED_EVERY = 16
_MOST_IN_A_STEP = 20_000
"""More waits than this without an update are a pass over the data set, not waits for batches."""

SEEN = "_ddlprof_seen"
"""Attribute that marks a `__next__` whose calls are timed as waits already."""


def _never() -> bool:
    return False


class Waits:
    """What the waits of one session share."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.inside = False
        """Whether the training thread is in a wait."""
        self.left = Left(recorder, BatchSource.wait)
        """Tells whether `inside` was left behind; the hooks that set it add themselves."""
        self.own: MeteredWait | None = None
        """The metered wait under way, if the training thread makes the batch itself."""
        self.is_compiling: Callable[[], bool] = _never
        self.no_gradients: Callable[[], bool] = _never
        self._ids: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._counter = itertools.count(step=2)
        self._meter: tuple[int, FetchMeter] | None = None

    def begin(self, torch: Any) -> None:
        """Called when torch is imported."""
        know(torch)
        self.is_compiling = torch.compiler.is_compiling
        self.no_gradients = lambda: not torch.is_grad_enabled()

    def new_id(self) -> int:
        """The number of a loader. The one after it is free, for the same function called without gradients."""
        return next(self._counter)

    def id_of(self, owner: Any) -> int:
        """The number of the loader `owner`. Raises TypeError for an object that has no hash or no weak references."""
        if owner not in self._ids:
            self._ids[owner] = self.new_id()
        return self._ids[owner]

    def meter(self) -> FetchMeter:
        """The meter of the current thread."""
        thread = threading.get_ident()
        if self._meter is None or self._meter[0] != thread:
            self._meter = thread, FetchMeter(whole_process=False)
        return self._meter[1]

    def in_training_thread(self) -> bool:
        """Whether the current thread is the one that is measured."""
        return threading.get_ident() == self.recorder.thread


class MeteredWait:
    """A wait in which the training thread makes the batch itself, perhaps from batches that workers hand over."""

    def __init__(self, meter: FetchMeter) -> None:
        self._meter = meter
        self._pieces: list[tuple[MeterReading, MeterReading]] = []
        self._handed: list[tuple[int, DeliveredLater | None]] = []
        self._paused_at = 0
        self._answer: Delivery | None = None
        self._answered = False
        self._begin = meter.begin()

    @property
    def hands_on(self) -> bool:
        """Whether workers of a loader have made some of the batch."""
        return bool(self._handed)

    def read_since(self) -> tuple[int | None, int | None]:
        """Bytes the thread has asked for, and bytes from storage, since the end of this wait; None if not counted."""
        return self._meter.read_since(self._pieces[-1][1][1])

    def pause(self) -> None:
        """Called when a wait for a loader's workers begins."""
        self._pieces.append((self._begin, self._meter.end()))
        self._paused_at = time.perf_counter_ns()

    def resume(self, delivered: DeliveredLater | None) -> None:
        """Called when that wait is over; `delivered` tells how it divides into fetch and prep."""
        self._handed.append((time.perf_counter_ns() - self._paused_at, delivered))
        self._begin = self._meter.begin()

    def end(self) -> None:
        """Called when the batch has been made."""
        self._pieces.append((self._begin, self._meter.end()))

    def __call__(self) -> Delivery | None:
        """The delivery of this wait. It is computed once, because it also serves for later short waits."""
        if not self._answered:
            self._answered = True
            try:
                self._answer = self._delivery()
            except Exception:  # /proc of a system like Linux
                self._answer = None
        return self._answer

    def _delivery(self) -> Delivery:
        own = [self._meter.fetch(begin, end) for begin, end in self._pieces]
        wall = sum(fetch.end - fetch.begin for fetch in own) + sum(wall for wall, _ in self._handed)
        fetch_ns = float(sum(fetch.blocked for fetch in own))
        prep_ns = sum(fetch.end - fetch.begin for fetch in own) - fetch_ns
        cpu = sum(fetch.cpu for fetch in own)
        costs: list[tuple[int | None, ...]] = [(fetch.asked, fetch.storage, fetch.blocked) for fetch in own]
        for waited, later in self._handed:
            delivered = later() if later is not None else None
            if delivered is not None:
                fetch_share, prep_share, more_cpu, *more = delivered
                fetch_ns, prep_ns, cpu = fetch_ns + fetch_share * waited, prep_ns + prep_share * waited, cpu + more_cpu
                costs.append(tuple(more))
        asked, storage, blocked = (_sum(values) for values in zip(*costs, strict=True))
        return fetch_ns / max(1, wall), prep_ns / max(1, wall), cpu, asked, storage, blocked


def _sum(values: tuple[int | None, ...]) -> int | None:
    """The sum; None if one part is not known."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


class Metering:
    """Meters the waits for batches that one source makes in the training thread: long ones, and a few short ones."""

    __slots__ = ("_began_ns", "_cpu_ns", "_last", "_last_ns", "_not_metered", "_own", "_waits")

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._own: MeteredWait | None = None
        self._last: MeteredWait | None = None
        self._last_ns = _SHORT_NS
        self._not_metered = 0
        self._began_ns = self._cpu_ns = 0

    def begin(self) -> MeteredWait | None:
        """Called when a wait begins; returns its meter, or None if the wait is not metered."""
        self._began_ns, self._cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self._own = None
        last = self._last
        due = self._not_metered >= _METERED_EVERY - 1 or self._last_ns >= _SHORT_NS
        if not due and last is not None and not last.hands_on:
            self._not_metered += 1
            return None
        self._not_metered = 0
        fetching = self._waits.recorder.fetching
        sampled = fetching.begin()
        self._own = self._metered()
        fetching.end(sampled)
        self._began_ns = time.perf_counter_ns()  # a wait is not long because it is metered
        return self._own

    def end(self) -> DeliveredLater | Delivery | None:
        """Called when the wait is over; returns its delivery. A short wait gets that of the last metered one."""
        self._last_ns = wall_ns = time.perf_counter_ns() - self._began_ns
        own, self._own = self._own, None
        if own is None and wall_ns < _ALIKE_NS:
            return self._last
        fetching = self._waits.recorder.fetching
        sampled = fetching.begin()
        delivery = self._delivery(own, wall_ns)
        fetching.end(sampled)
        return delivery

    def _metered(self) -> MeteredWait | None:
        try:
            meter = self._waits.meter()
            return MeteredWait(meter) if meter.available else None
        except Exception as error:  # /proc of a system like Linux
            self._waits.recorder.drops.add(SPLIT, error)
            return None

    def _delivery(self, own: MeteredWait | None, wall_ns: int) -> DeliveredLater | Delivery | None:
        try:
            if own is not None:
                own.end()
                self._last = own
            elif self._last is not None:  # what was read since then was read in this wait: the others were short
                busy = min(wall_ns, time.thread_time_ns() - self._cpu_ns)
                return 1 - busy / wall_ns, busy / wall_ns, busy, *self._last.read_since(), wall_ns - busy
            return self._last
        except Exception as error:
            self._waits.recorder.drops.add(SPLIT, error)
            return None


class BatchSource:
    """A function or iterator that makes batches in the training thread; `samples(batch)` is a batch's sample count."""

    def __init__(self, waits: Waits, samples: Callable[[Any], int | None]) -> None:
        self.called = False
        """Whether the training thread has called it."""
        self._waits = waits
        self._samples = samples
        self._id = waits.new_id()
        self._metering = Metering(waits)
        self._updates = self._in_this_step = 0

    def id_for(self, owner: Any) -> int:
        """The number of the loader: that of the object whose method is called, or the function's own."""
        try:
            return self._id if owner is None else self._waits.id_of(owner)
        except TypeError:
            return self._id

    def wait(self, ident: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the function and times the call as a wait; its result is a batch, or an iterator over batches."""
        waits, recorder = self._waits, self._waits.recorder
        inside = waits.inside and not waits.left.behind(sys._getframe())
        if waits.is_compiling() or inside or self._is_a_pass_over_the_data():
            return function(*args, **kwargs)
        # One function may feed training and evaluation; which of them, shows in whether there are gradients.
        ident += waits.no_gradients()
        samples: int | None = 0
        begun = True
        try:
            begun = recorder.emit(Kind.DATA_BEGIN, ident)
            if not begun:
                return function(*args, **kwargs)
            self.called = waits.inside = True
            waits.own = self._metering.begin()
            result = function(*args, **kwargs)
            if is_iterator(result):
                recorder.emit(Kind.EPOCH, ident)
            else:
                samples = self._count(result)
            return result
        finally:
            if begun:
                waits.inside, waits.own = False, None
                delivery = None
                try:
                    delivery = self._metering.end()
                finally:
                    recorder.emit(Kind.DATA_END, ident, delivery, samples)

    def _is_a_pass_over_the_data(self) -> bool:
        updates = self._waits.recorder.boundaries
        if updates != self._updates:
            self._updates, self._in_this_step = updates, 0
        self._in_this_step += 1
        return self._in_this_step > _MOST_IN_A_STEP

    def _count(self, batch: Any) -> int | None:
        try:
            return self._samples(batch)
        except Exception as error:  # whatever a user's batch type does
            self._waits.recorder.drops.add(SAMPLES, error)
            return None


def is_iterator(value: Any) -> bool:
    """Whether `value` is an iterator, which gives batches and is no batch itself."""
    return hasattr(type(value), "__next__")
