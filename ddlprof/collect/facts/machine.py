"""What the machine is and what is installed on it: facts for the manifest.

Context for a reader, not evidence: no class of a step comes from here. Every fact fails on its own. Never imports torch
or initialises a device; what torch knows is read only where the script has loaded it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddlprof.base.cores import available_cores
from ddlprof.base.guarded import attempt

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
PACKAGES = ("torch", "ddlprof")
"""The distributions whose versions the manifest has."""
_DMI = Path("/sys/class/dmi/id")
_NVML = "libnvidia-ml.so.1"
"""The driver's library, as pynvml loads it."""


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
