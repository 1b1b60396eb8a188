"""How busy the machine and this process are, about once a second, and the most memory that the process has held.

Context for a reader, not evidence: no class of a step comes from here. Every counter fails on its own. Never imports
torch or initialises a device; what torch knows is read only where the script has loaded it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from ddlprof.base.guarded import attempt
from ddlprof.base.real_process import getpid
from ddlprof.base.real_time import time
from ddlprof.collect.accelerator import known
from ddlprof.collect.accelerator.clock import DeviceClock
from ddlprof.collect.accelerator.protocol import Counters
from ddlprof.collect.drops import COUNTER, Drops
from ddlprof.collect.facts.health import HealthSampler
from ddlprof.collect.facts.host_energy import HostEnergy
from ddlprof.collect.facts.worker_memory import WorkerMemory
from ddlprof.model.health import HealthReading
from ddlprof.model.records import ContextRow

Number = int | float | None

_PROC = "/proc"
_MOST_FIGURES = 1 << 14
"""The bytes of a file that is read at once."""


class ContextSampler:
    """Reads counters of the host, this process and its accelerator. One object serves one thread."""

    def __init__(self, origin_ns: int, clock: Callable[[], int]) -> None:
        self._origin_ns = origin_ns
        self._clock = clock
        self._cpu = _HostCpu()
        self._process = _Process()
        self._device = _Device()
        self._workers = WorkerMemory(time.perf_counter_ns, time.thread_time_ns)
        self._readers: dict[str, Callable[[], Number]] = {
            "cpu_percent": self._cpu.percent,
            "memory_used_bytes": _memory_used_bytes,
            "process_rss_bytes": self._process.rss_bytes,
            "process_private_bytes": self._process.private_bytes,
            "process_queued_ns": _process_queued_ns,
            "job_cpu_ns": _job_cpu_ns,
            "workers_copied_bytes": self._workers.copied_bytes,
            "workers_new_bytes": self._workers.new_bytes,
            "gpu_percent": self._device.reader("percent"),
            "gpu_memory_bytes": self._device.reader("memory_bytes"),
            "gpu_power_w": self._device.reader("power_w"),
            "gpu_clock_mhz": self._device.reader("clock_mhz"),
            "gpu_temperature_c": self._device.reader("temperature_c"),
            "gpu_throttle_reasons": self._device.reader("throttle_reasons"),
            "gpu_power_limit_w": self._device.reader("power_limit_w"),
            "gpu_energy_j": self._device.reader("energy_j"),
            "host_energy_j": HostEnergy().joules,
        }
        self._health = HealthSampler(origin_ns, clock, self._device.health)
        self._failed: set[str] = set()
        self.drops = Drops()

    def sample(self) -> ContextRow | None:
        """Reads all counters; None if none is available. A counter that fails is noted once and not read again."""
        self._read("device", self._device.look)
        values = {name: self._read(name, reader) for name, reader in self._readers.items()}
        if all(value is None for value in values.values()):
            return None
        return ContextRow(self._clock() - self._origin_ns, **values)  # type: ignore[arg-type]

    def workers_started(self) -> None:
        """Looks at a loader's workers before they have copied much, so that what they copy from now on is seen."""
        attempt(self._workers.look)

    def health(self, last: bool = False) -> list[HealthReading]:
        """What has changed of the counters of a sick machine, once in ten seconds and at the end of the training."""
        return self._health.changes(last)

    @property
    def whose(self) -> str | None:
        """A name for what the device's counters cover, if that is not one process on a whole device; None otherwise."""
        counters = self._device.counters
        return None if counters is None else counters.whose

    def close(self) -> None:
        """Closes the driver's library."""
        if self._device.counters is not None:
            attempt(self._device.counters.close)

    def _read(self, name: str, reader: Callable[[], Number]) -> Number:
        if name in self._failed:
            return None
        try:
            return reader()
        except Exception as error:
            self._failed.add(name)
            self.drops.add(COUNTER, f"{name}: {type(error).__name__}: {error}")
            return None


class _HostCpu:
    """The share of all the host's cores that was busy since the last call.

    `psutil.cpu_percent` is not used: it keeps one state for the whole process, and the script may use it, too.
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def percent(self) -> float | None:
        times = importlib.import_module("psutil").cpu_times()
        # Linux counts the time of virtual guests in user time, too
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        busy = total - times.idle - getattr(times, "iowait", 0.0)
        last, self._last = self._last, (busy, total)
        if last is None or total <= last[1]:
            return None
        return float(round(min(100.0, max(0.0, 100.0 * (busy - last[0]) / (total - last[1]))), 1))


def _memory_used_bytes() -> int:
    return int(importlib.import_module("psutil").virtual_memory().used)


class _Process:
    """The memory of this process. `private_bytes` reuses the reading of a call of `rss_bytes` right before it."""

    def __init__(self) -> None:
        self._found: Any = None
        self._memory: Any = None

    def rss_bytes(self) -> int:
        """The resident memory, in bytes."""
        self._memory = self._read()
        return int(self._memory.rss)

    def private_bytes(self) -> int | None:
        """The resident memory in bytes without pages shared with other processes; None if the system does not tell."""
        memory, self._memory = self._memory or self._read(), None
        shared = getattr(memory, "shared", None)  # only Linux has this field
        return None if shared is None else max(0, int(memory.rss - shared))

    def _read(self) -> Any:
        if self._found is None:
            self._found = importlib.import_module("psutil").Process(getpid())
        return self._found.memory_info()


def _process_queued_ns() -> int | None:
    """How long the main thread has waited for a processor so far, in ns, from Linux; None where that is not counted."""
    try:
        running, queued, _ = _figures("self/schedstat").split()
    except FileNotFoundError:
        return None
    return int(queued) if int(running) else None


def _job_cpu_ns() -> int | None:
    """The processor time of this process and its children so far, in ns; None where the system does not list them."""
    try:
        children = _figures(f"self/task/{getpid()}/children").split()
    except FileNotFoundError:
        return None
    ended = os.times()
    ticks = 0
    for child in children:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = _figures(f"{int(child)}/stat").rpartition(b")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    living = ticks / os.sysconf("SC_CLK_TCK")
    return time.process_time_ns() + int((ended.children_user + ended.children_system + living) * 1e9)


class _Device:
    """Counters of the accelerator that the script uses. All are None until it uses one."""

    def __init__(self) -> None:
        self.counters: Counters | None = None

    def look(self) -> None:
        """Finds the device that the process uses now."""
        if self.counters is None and (accelerator := known.in_use()) is not None:
            self.counters = accelerator.counters()
        if self.counters is not None:
            self.counters.look()

    def health(self) -> dict[tuple[str, str], int]:
        """The device's counters of `ddlprof.model.health`, by name and place."""
        return {} if self.counters is None else self.counters.health()

    def reader(self, name: str) -> Callable[[], Number]:
        """A function that reads the counter `name`."""

        def read() -> Number:
            value: Number = None if self.counters is None else getattr(self.counters, name)()
            return value

        return read


def _figures(name: str) -> bytes:
    """The content of the file `name` in /proc. It is read without buffers, because this runs several times a second."""
    descriptor = os.open(f"{_PROC}/{name}", os.O_RDONLY)
    try:
        return os.read(descriptor, _MOST_FIGURES)
    finally:
        os.close(descriptor)


def peak_rss_bytes() -> int | None:
    """The largest resident memory of this process so far, in bytes.

    Read from /proc where that exists: `ru_maxrss` starts at the value of the parent at the time of the fork.
    """
    try:
        status = _figures("self/status")
        found = status.find(b"\nVmHWM:")
        if found >= 0:
            return int(status[found:].split(None, 2)[1]) * 1024
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    except (OSError, ImportError):
        return None


class Peaks(NamedTuple):
    """Peaks of memory in bytes; None: not known, or no device.

    The names are as in `ddlprof.model.records.ContextRow`.
    """

    process_peak_rss_bytes: int | None = None
    gpu_peak_allocated_bytes: int | None = None
    """The memory allocated by tensors."""
    gpu_peak_reserved_bytes: int | None = None
    """The memory that torch's allocator took from the device, cached blocks included."""


class PeakMemory:
    """The most memory that this process has held so far, from marks that the system and torch keep anyway.

    The helper thread reads them, which takes 0.1 ms and no time of the training thread. The marks are never reset, as
    the script may read them, too. If the script resets torch's marks, they cover the time since then.
    """

    def __init__(self) -> None:
        self.last = Peaks()

    def read(self, clock: DeviceClock | None = None) -> int | None:
        """Updates `last`. Returns the bytes for a step's record.

        With a clock: the peak allocated on its device. Without: the peak of resident memory.
        """
        resident = self._never_less(attempt(peak_rss_bytes))
        if clock is None:
            self.last = Peaks(resident)
            return resident
        allocated, reserved = attempt(lambda: _held(clock.stream.device)) or (None, None)
        self.last = Peaks(resident, allocated, reserved)
        return allocated

    def _never_less(self, resident: int | None) -> int | None:
        """Keeps the peak from falling, as Linux sums its counts of pages per processor only now and then."""
        before = self.last.process_peak_rss_bytes
        return resident if resident is None or before is None else max(resident, before)


def _held(device: Any) -> tuple[int | None, int | None]:
    accelerator = known.in_use()
    if accelerator is None:
        return None, None
    return accelerator.peak_allocated_bytes(device), accelerator.peak_reserved_bytes(device)
