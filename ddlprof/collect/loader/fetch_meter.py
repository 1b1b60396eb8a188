"""Measures the fetch of a batch, in a loader's worker or the training thread: time blocked, processor time, bytes read.

Time: blocked = wall - processor time - processor time of finished children - waiting for a processor. A thread's
run-queue delay (second field of /proc/.../schedstat, no root needed) is what tells a sleep from a burn when there are
more runnable threads than cores. Linux only; elsewhere `FetchMeter.available` is False. The delays of several threads
are not added up: sixteen that wait together for 10 ms are 10 ms of waiting, not 160. So processor time and waiting
together are the processor time of all threads (they mostly take turns, for the interpreter's lock), or, where that is
longer, the time in which the thread that was runnable longest ran or waited for a processor.

Bytes, as the kernel counts them: `asked` is what read() and the like returned, whether it came from storage or from the
page cache, but not from sockets; `storage` is what had to be fetched from storage, for mapped files and by reading
ahead too.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from ddlprof.base.kept_file import KernelFile
from ddlprof.base.real_time import time
from ddlprof.collect.process.clocks import ThreadClock

_SPIN_NS = 8_000_000
"""OpenMP's threads spin this long after a parallel region (3-7 ms seen with libgomp) before they sleep."""


RawReading = tuple[int, int, int, "os.times_result", bytes, Mapping[int, int]]
"""A reading as the kernel gives it. It is evaluated later, because code at a fetch runs with cold caches."""


class CpuTimes(NamedTuple):
    """Cumulative nanoseconds."""

    wall: int
    own_cpu: int
    process_cpu: int
    children_cpu: int
    runnable: Mapping[int, int]
    """The time that each thread was runnable: running, or waiting for a processor."""


def _runnable_ns(thread: int) -> int:
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            running, waiting, _ = map(int, file.read().split())
    except OSError:  # the thread ended meanwhile
        return 0
    return running + waiting


class BlockedClock:
    """The clock of a whole worker process (`whole_process`), or of the thread that makes it.

    In a training process the processor time of the other threads counts only beyond what OpenMP's spinning
    explains, since a sleep after a parallel region would otherwise look like work.
    """

    def __init__(self, whole_process: bool) -> None:
        self._whole = whole_process
        self._spin_ns = 0 if whole_process else _SPIN_NS * max(1, (os.cpu_count() or 1) - 1)
        self.available = os.path.exists("/proc/self/schedstat")
        if self.available:
            self._thread = threading.get_native_id()
            self._own = ThreadClock()

    def read(self) -> RawReading:
        """The current reading; some microseconds. To be called in the thread that made the clock."""
        others: Mapping[int, int] = {}
        if self._whole:
            threads = map(int, os.listdir("/proc/self/task"))
            others = {thread: _runnable_ns(thread) for thread in threads if thread != self._thread}
        own, schedstat = self._own.cpu_ns(), self._own.waiting()
        process, children = time.process_time_ns(), os.times()
        return time.perf_counter_ns(), own, process, children, schedstat, others

    def doubt(self) -> None:
        """Has the file opened again after a reading that did not have the kernel's form; from any thread."""
        self._own.doubt()

    def reading(self, raw: RawReading) -> CpuTimes:
        """Evaluates a raw reading, in any thread. Raises ValueError if it does not have the kernel's form."""
        wall, own, process, times, schedstat, others = raw
        # The thread's own clock is exact, while the kernel brings schedstat up to date only now and then.
        runnable = {**others, self._thread: own + ThreadClock.delay_ns(schedstat)}
        children = int((times.children_user + times.children_system) * 1e9)
        return CpuTimes(wall, process if self._whole else own, process, children, runnable)

    def blocked_and_cpu_ns(self, begin: CpuTimes, end: CpuTimes) -> tuple[int, int]:
        """Times between two readings: blocked, between 0 and the wall time, and processor time, of all cores."""
        own = end.own_cpu - begin.own_cpu
        others = (end.process_cpu - begin.process_cpu) - own
        others = max(0, others - self._spin_ns)
        children = end.children_cpu - begin.children_cpu
        wall = end.wall - begin.wall
        longest = max((time_ns - begin.runnable.get(thread, 0) for thread, time_ns in end.runnable.items()), default=0)
        busy = max(own + others, longest) + children
        return min(wall, max(0, wall - busy)), own + others + children


class ReadBytes(NamedTuple):
    """Cumulative bytes."""

    asked: int
    storage: int

    @classmethod
    def of(cls, raw: bytes) -> ReadBytes:
        """Parses /proc/.../io. Raises ValueError or IndexError if it does not have the kernel's form."""
        words = raw.split(None, 10)  # rchar: N, wchar: N, syscr: N, syscw: N, read_bytes: N, ...
        if words[0] != b"rchar:":
            raise ValueError("no counters")
        return cls(int(words[1]), int(words[9]))


class IoCounters:
    """The counters of the whole process (`whole_process`), or of the thread that makes it, which costs the same."""

    def __init__(self, whole_process: bool) -> None:
        """Raises OSError where the kernel counts nothing or does not show it."""
        owner = "self" if whole_process else "thread-self"
        self._file = KernelFile(f"/proc/{owner}/io")
        self.read: Callable[[], bytes] = partial(self._file.read, 512)
        """The current counters, for `ReadBytes.of`; about a microsecond."""

    def doubt(self) -> None:
        """Has the file opened again after a reading that did not have the kernel's form."""
        self._file.doubt()


MeterReading = tuple[RawReading, "bytes | None"]
"""Readings of the clock and of the counters, as the kernel gives them."""


Delivery = tuple[float, float, int, "int | None", "int | None", "int | None"]
"""As in `Kind.DATA_END`: shares of the wait (fetch, prep), processor time in ns, bytes asked for, bytes from storage,
and how long the thread or worker that made the batch was blocked, in ns."""

DeliveredLater = Callable[[], "Delivery | None"]
"""Evaluates a delivery; called by the helper thread, to spare the training thread that work."""


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
        clock = self._clock.read()
        return clock, None if self._counters is None else self._counters.read()

    def end(self) -> MeterReading:
        """Takes a reading after a fetch. The clock reads files itself, so the counters go first."""
        counters = None if self._counters is None else self._counters.read()
        return self._clock.read(), counters

    def read_since(self, counters: bytes | None) -> tuple[int | None, int | None]:
        """Bytes asked for and from storage since these counters were read; None if not counted.

        Raises ValueError or IndexError if a reading does not have the kernel's form.
        """
        if counters is None or self._counters is None:
            return None, None
        return _bytes_between(counters, self._counters.read())

    def fetch(self, begin: MeterReading, end: MeterReading) -> Fetch:
        """The fetch between two readings; in any thread. Raises ValueError if one does not have the kernel's form."""
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
