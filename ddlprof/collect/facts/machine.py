"""What the machine is and how busy it is: facts for the manifest, counters about once a second.

Context for a reader, not evidence: no class of a step comes from here. Every counter fails on its own. Never
imports torch or initialises a device; what torch knows is read only where the script has loaded it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddlprof.base.cores import available_cores
from ddlprof.base.guarded import attempt
from ddlprof.collect.accelerator import known
from ddlprof.collect.accelerator.protocol import Counters
from ddlprof.collect.drops import COUNTER, Drops
from ddlprof.model.records import ContextRow

Number = int | float | None

_PROC = Path("/proc")
_MOST_FIGURES = 1 << 14
"""The bytes of a file that is read at once."""
_CGROUP = Path("/sys/fs/cgroup")
_DMI = Path("/sys/class/dmi/id")
_NVML = "libnvidia-ml.so.1"
"""The driver's library, as pynvml loads it."""


class ContextSampler:
    """Counters of the host, this process and its accelerator; for one thread."""

    def __init__(self, origin_ns: int, clock: Callable[[], int]) -> None:
        self._origin_ns = origin_ns
        self._clock = clock
        self._cpu = _HostCpu()
        self._process = _Process()
        self._device = _Device()
        self._readers: dict[str, Callable[[], Number]] = {
            "cpu_percent": self._cpu.percent,
            "memory_used_bytes": _memory_used_bytes,
            "process_rss_bytes": self._process.rss_bytes,
            "process_private_bytes": self._process.private_bytes,
            "process_queued_ns": _process_queued_ns,
            "gpu_percent": self._device.reader("percent"),
            "gpu_memory_bytes": self._device.reader("memory_bytes"),
            "gpu_power_w": self._device.reader("power_w"),
            "gpu_clock_mhz": self._device.reader("clock_mhz"),
            "gpu_temperature_c": self._device.reader("temperature_c"),
            "gpu_throttle_reasons": self._device.reader("throttle_reasons"),
            "gpu_power_limit_w": self._device.reader("power_limit_w"),
        }
        self._failed: set[str] = set()
        self.drops = Drops()

    def sample(self) -> ContextRow | None:
        """The counters now; None if none of them is available. One that fails is counted, and not asked again."""
        self._read("device", self._device.look)
        values = {name: self._read(name, reader) for name, reader in self._readers.items()}
        if all(value is None for value in values.values()):
            return None
        return ContextRow(self._clock() - self._origin_ns, **values)  # type: ignore[arg-type]

    @property
    def whose(self) -> str | None:
        """Whose the device's counters are, where they are not those of one process on a whole device."""
        counters = self._device.counters
        return None if counters is None else counters.whose

    def close(self) -> None:
        """Gives the driver's library back."""
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
    """Share of all the host's cores that was busy since the last call.

    Not `psutil.cpu_percent`: it keeps one state for the process, which is the script's.
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def percent(self) -> float | None:
        times = importlib.import_module("psutil").cpu_times()
        # Linux counts guests' time in user time too
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        busy = total - times.idle - getattr(times, "iowait", 0.0)
        last, self._last = self._last, (busy, total)
        if last is None or total <= last[1]:
            return None
        return float(round(min(100.0, max(0.0, 100.0 * (busy - last[0]) / (total - last[1]))), 1))


def _memory_used_bytes() -> int:
    return int(importlib.import_module("psutil").virtual_memory().used)


class _Process:
    """The memory of this process. Asked for both of its figures in turn, it reads them once."""

    def __init__(self) -> None:
        self._found: Any = None
        self._memory: Any = None

    def rss_bytes(self) -> int:
        """What of it is resident."""
        self._memory = self._read()
        return int(self._memory.rss)

    def private_bytes(self) -> int | None:
        """The same without what it shares with others, where the system tells."""
        memory, self._memory = self._memory or self._read(), None
        shared = getattr(memory, "shared", None)  # Linux tells
        return None if shared is None else max(0, int(memory.rss - shared))

    def _read(self) -> Any:
        if self._found is None:
            self._found = importlib.import_module("psutil").Process()
        return self._found.memory_info()


def _process_queued_ns() -> int | None:
    """From Linux, whose file of a process is that of its main thread; None elsewhere, and where it does not count."""
    try:
        running, queued, _ = _figures("self/schedstat").split()
    except FileNotFoundError:
        return None
    return int(queued) if int(running) else None


class _Device:
    """Counters of the accelerator that the script uses; None until it uses one."""

    def __init__(self) -> None:
        self.counters: Counters | None = None

    def look(self) -> None:
        """Finds the device that the process uses now."""
        if self.counters is None and (accelerator := known.in_use()) is not None:
            self.counters = accelerator.counters()
        if self.counters is not None:
            self.counters.look()

    def reader(self, name: str) -> Callable[[], Number]:
        """Reads one of them."""

        def read() -> Number:
            value: Number = None if self.counters is None else getattr(self.counters, name)()
            return value

        return read


def host_facts() -> dict[str, Any]:
    """Facts of the machine, those that are known."""
    facts: dict[str, Any] = {
        "platform": platform_name(),
        "instance_type": instance_type(),
        "cpu_model": cpu_model(),
        "physical_cores": attempt(lambda: importlib.import_module("psutil").cpu_count(logical=False)),
        "logical_cores": os.cpu_count(),
        "available_cores": available_cores(),
        "cpu_quota_cores": cpu_quota_cores(),
        "memory_bytes": attempt(lambda: int(importlib.import_module("psutil").virtual_memory().total)),
        **(attempt(_gpu_facts) or {}),
    }
    return {name: value for name, value in facts.items() if value is not None}


def versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of Python, of the installed distributions among `names`, and of CUDA if torch is loaded."""
    found = {"python": sys.version.split(maxsplit=1)[0]}
    for name in names:
        version = _version(name)
        if version is not None:
            found[name] = version
    cuda = attempt(lambda: sys.modules["torch"].version.cuda)
    return {**found, "cuda": str(cuda)} if cuda else found


def _version(name: str) -> str | None:
    """The version of an installed distribution.

    Importing `importlib.metadata` takes longer than all other facts together, so it is asked where a look along
    sys.path does not tell.
    """
    version = _plain_version(name)
    if version is None:
        from importlib import metadata

        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            return None
    return version


def _plain_version(name: str) -> str | None:
    """The version in the first `NAME-VERSION.dist-info` on sys.path; None where there is none, or another form."""
    for folder in sys.path:
        try:
            entries = os.listdir(folder or os.curdir)
        except OSError:
            continue
        found = [e for e in entries if e.lower().startswith((f"{name}-", f"{name}.")) and e.endswith("-info")]
        if found:
            return _version_in(os.path.join(folder, found[0], "METADATA")) if len(found) == 1 else None
    return None


def _version_in(file: str) -> str | None:
    try:
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                key, colon, value = line.partition(":")
                if key == "Version":
                    return value.strip() or None
                if not colon and not line.startswith((" ", "\t")):  # the end of the fields
                    return None
    except (OSError, ValueError):
        pass
    return None


def _figures(name: str) -> bytes:
    """What the kernel says in a file of /proc. A plain read: this is asked several times a second."""
    descriptor = os.open(f"{_PROC}/{name}", os.O_RDONLY)
    try:
        return os.read(descriptor, _MOST_FIGURES)
    finally:
        os.close(descriptor)


def peak_rss_bytes() -> int | None:
    """The largest resident set of this process so far.

    From /proc where it is: `ru_maxrss` begins with what the parent had when it forked.
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


def platform_name() -> str:
    """What `platform.platform` says. On Linux without its question to `uname -p`, a process whose answer it drops."""
    with suppress(AttributeError, OSError, ValueError):
        if sys.platform == "linux":
            libc, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
            system = os.uname()
            return f"{system.sysname}-{system.release}-{system.machine}-with-{libc}{version}"
    import platform

    return platform.platform()


def instance_type() -> str | None:
    """Type of an EC2 machine, as its firmware gives it; None elsewhere, and on old types (p2, p3), which hide it."""
    try:
        if (_DMI / "sys_vendor").read_text(encoding="ascii").strip() != "Amazon EC2":
            return None
        return (_DMI / "product_name").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def cpu_model() -> str | None:
    """The processor's name as the system gives it, at least its architecture."""
    try:
        for line in (_PROC / "cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    import platform

    return platform.machine() or None


def cpu_quota_cores() -> float | None:
    """Cores' worth of time that the control groups of this process allow; None: no limit.

    Inside a container the path of the group may not be visible: then its root is the group.
    """
    try:
        lines = (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUP / controllers
        group = root / path.lstrip("/")
        for directory in (group, *group.parents):
            if (quota := _quota(directory)) is not None:
                quotas.append(quota)
            if directory == root:
                break
    return min(quotas, default=None)


def _quota(group: Path) -> float | None:
    """The quota of a control group of version 2 (`cpu.max`) or version 1."""
    try:
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota = (group / "cpu.cfs_quota_us").read_text(encoding="ascii")
            period = (group / "cpu.cfs_period_us").read_text(encoding="ascii")
        except OSError:
            return None
    return float(quota) / float(period) if quota.strip() != "max" and float(quota) > 0 else None


def _gpu_facts() -> dict[str, Any]:
    if sys.platform == "linux" and "pynvml" not in sys.modules:
        ctypes.CDLL(_NVML)  # raises OSError where there is no driver: sooner than by an import of some milliseconds
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return {
            "gpus": [nvml.nvmlDeviceGetName(handle) for handle in handles],
            "gpu_memory_bytes": [int(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles],
            "gpu_driver": nvml.nvmlSystemGetDriverVersion(),
        }
    finally:
        nvml.nvmlShutdown()
