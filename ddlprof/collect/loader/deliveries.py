"""What is known of a batch when a wait for it ends: how the wait divides, and what making the batch took.

Readings are taken in the training thread; what they say is worked out by the helper thread.
"""

from __future__ import annotations

from collections.abc import Callable

from ddlprof.base.real_time import time
from ddlprof.collect.loader.fetch_meter import FetchMeter, MeterReading
from ddlprof.collect.loader.worker import Ring

Delivery = tuple[float, float, int, "int | None", "int | None", "int | None"]
"""As in `Kind.DATA_END`: shares of the wait (fetch, prep), processor time, bytes asked for, bytes from storage, and how
long whoever made the batch was blocked."""

DeliveredLater = Callable[[], "Delivery | None"]
"""Called by the helper thread: what need not be worked out in the training thread."""


def of_worker(ring: Ring, worker: int, generation: int, number: int, begin: int, end: int) -> Delivery | None:
    """Of the wait `begin..end` for the worker's fetch of this number: shares in which it was blocked and working (the
    rest is hand-over), and costs. None where the worker left no figures.

    A worker that has begun its next fetch is too busy to hand over the batch: that wait is split in the same ratio.
    """
    fetch = ring.get(worker, generation, number)
    if fetch is None:
        return None
    next_begin = ring.begin_of(worker, generation, number + 1)
    overlap = max(0, min(fetch.end, end) - max(fetch.begin, begin))
    if next_begin:
        overlap += max(0, end - max(next_begin, fetch.end, begin))
    share = overlap / max(1, end - begin)
    blocked_share = fetch.blocked / max(1, fetch.end - fetch.begin)
    return share * blocked_share, share * (1 - blocked_share), fetch.cpu, fetch.asked, fetch.storage, fetch.blocked


class OwnWait:
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
        """Workers of a loader have made some of it."""
        return bool(self._handed)

    def read_since(self) -> tuple[int | None, int | None]:
        """Bytes that the thread has asked for since the end of this wait, and those from storage."""
        return self._meter.read_since(self._pieces[-1][1][1])

    def pause(self) -> None:
        """The wait for a loader's workers begins."""
        self._pieces.append((self._begin, self._meter.end()))
        self._paused_at = time.perf_counter_ns()

    def resume(self, delivered: DeliveredLater | None) -> None:
        """Notes that the wait is over; `delivered` tells how it divides."""
        self._handed.append((time.perf_counter_ns() - self._paused_at, delivered))
        self._begin = self._meter.begin()

    def end(self) -> None:
        """The batch is there."""
        self._pieces.append((self._begin, self._meter.end()))

    def __call__(self) -> Delivery | None:
        """Tells what is delivered; a short wait's answer serves for those like it, and is worked out once."""
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
    """The sum; None where one part is not known."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
