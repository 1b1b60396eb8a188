"""The cost of fetching a batch, in a loader's worker or the training thread: time blocked, time computing, bytes."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from ddlprof.collect.process.blocked import BlockedClock, Raw
from ddlprof.collect.process.io_counters import IoCounters, ReadBytes

MeterReading = tuple[Raw, "bytes | None"]
"""Readings of the clock and of the counters, as the kernel gives them."""


class Fetch(NamedTuple):
    """One fetch. Times are nanoseconds, `cpu` that of all threads."""

    begin: int
    end: int
    blocked: int
    cpu: int
    asked: int | None
    """Bytes read, as `IoCounters` has them; None where the kernel does not count them."""
    storage: int | None


class FetchMeter:
    """The meter of a whole worker process (`whole_process`), or of the thread that makes it."""

    def __init__(self, whole_process: bool) -> None:
        self._clock = BlockedClock(whole_process)
        self._counters: IoCounters | None = None
        with contextlib.suppress(OSError):
            self._counters = IoCounters(whole_process)
        self.available = self._clock.available

    def begin(self) -> MeterReading:
        """Takes a reading before a fetch, in some microseconds."""
        time = self._clock.read()
        return time, None if self._counters is None else self._counters.read()

    def end(self) -> MeterReading:
        """Takes a reading after a fetch. The clock reads files itself, so the counters go first."""
        counters = None if self._counters is None else self._counters.read()
        return self._clock.read(), counters

    def read_since(self, counters: bytes | None) -> tuple[int | None, int | None]:
        """Bytes asked for and from storage since these counters were read. Raises ValueError if they are no figures."""
        if counters is None or self._counters is None:
            return None, None
        return _bytes_between(counters, self._counters.read())

    def fetch(self, begin: MeterReading, end: MeterReading) -> Fetch:
        """The fetch between two readings; in any thread. Raises ValueError if what was read are no figures."""
        try:
            return self._fetch(begin, end)
        except (ValueError, IndexError) as error:  # the script has closed our descriptor and uses its number
            self._clock.doubt()
            if self._counters is not None:
                self._counters.doubt()
            raise ValueError("no figures of the kernel's") from error

    def _fetch(self, begin: MeterReading, end: MeterReading) -> Fetch:
        before, after = self._clock.reading(begin[0]), self._clock.reading(end[0])
        blocked, cpu = self._clock.blocked_and_cpu_ns(before, after)
        asked = storage = None
        if begin[1] is not None and end[1] is not None:
            asked, storage = _bytes_between(begin[1], end[1])
        return Fetch(before.wall, after.wall, blocked, cpu, asked, storage)


def _bytes_between(before: bytes, after: bytes) -> tuple[int, int]:
    first, second = ReadBytes.of(before), ReadBytes.of(after)
    return second.asked - first.asked - len(
        before
    ), second.storage - first.storage  # the first reading is in the second
