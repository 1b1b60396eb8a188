"""Facts for the manifest: what the machine is and what is installed on it.

These facts help a reader; no class of a step is computed from them. If one fact cannot be read, the others still are.
This file never imports torch or initialises a device. It asks torch only where the script has imported it.
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
from ddlprof.collect.accelerator import amd

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
PACKAGES = ("torch", "ddlprof")
"""The packages whose versions are written to the manifest."""
_16BIT = {"bf16": ("avx512_bf16", "amx_bf16", "bf16"), "fp16": ("avx512_fp16", "amx_fp16", "asimdhp")}
"""The flags of processors, of x86 and of Arm, that compute in such a type."""
_FAMILIES = {
    "GenuineIntel 6 79": "Broadwell", "GenuineIntel 6 85": "Skylake", "GenuineIntel 6 106": "Ice Lake",
    "GenuineIntel 6 143": "Sapphire Rapids", "GenuineIntel 6 207": "Emerald Rapids",
    "GenuineIntel 6 173": "Granite Rapids",
    "AuthenticAMD 23 49": "Rome", "AuthenticAMD 25 1": "Milan", "AuthenticAMD 25 17": "Genoa",
}  # fmt: skip
"""Processors of servers by family and model, as Linux has them (arch/x86/include/asm/intel-family.h, and AMD's
processor programming references); Skylake stands for Cascade Lake, too."""
_DMI = Path("/sys/class/dmi/id")
_NVML = "libnvidia-ml.so.1"
"""The driver's library, as pynvml loads it."""


def host_facts() -> dict[str, Any]:
    """The facts of the machine that are known, by their names in the manifest."""
    facts: dict[str, Any] = {
        "platform": platform_name(),
        "instance_type": instance_type(),
        "cpu_model": cpu_model(),
        "cpu_family": cpu_family(),
        "cpu_16bit": cpu_16bit(),
        "physical_cores": attempt(lambda: importlib.import_module("psutil").cpu_count(logical=False)),
        "logical_cores": os.cpu_count(),
        "available_cores": available_cores(),
        "cpu_quota_cores": cpu_quota_cores(),
        "memory_bytes": attempt(lambda: int(importlib.import_module("psutil").virtual_memory().total)),
        **(attempt(_gpu_facts) or attempt(amd.gpu_facts) or {}),
    }
    return {name: value for name, value in facts.items() if value is not None}


def versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of Python, of the installed distributions among `names`, and of CUDA or HIP if torch is loaded."""
    found = {"python": sys.version.split(maxsplit=1)[0]}
    for name in names:
        version = _version(name)
        if version is not None:
            found[name] = version
    for name in ("cuda", "hip"):
        version = attempt(lambda name=name: getattr(sys.modules["torch"].version, name))  # type: ignore[misc]
        if version:
            found[name] = str(version)
    return found


def _version(name: str) -> str | None:
    """The version of an installed package; None if it is not installed.

    Importing `importlib.metadata` takes longer than all other facts together, so sys.path is looked through first.
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
    """The version in the first `NAME-VERSION.dist-info` on sys.path; None if there is none of this form."""
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
                if not colon and not line.startswith((" ", "\t")):  # an empty line ends the headers
                    return None
    except (OSError, ValueError):
        pass
    return None


def platform_name() -> str:
    """What `platform.platform` says, but on Linux without starting `uname -p`, whose answer it does not use."""
    with suppress(AttributeError, OSError, ValueError):
        if sys.platform == "linux":
            libc, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
            system = os.uname()
            return f"{system.sysname}-{system.release}-{system.machine}-with-{libc}{version}"
    import platform

    return platform.platform()


def instance_type() -> str | None:
    """The type of an EC2 machine from its firmware; None elsewhere, and on old types (p2, p3), which do not tell it."""
    try:
        if (_DMI / "sys_vendor").read_text(encoding="ascii").strip() != "Amazon EC2":
            return None
        return (_DMI / "product_name").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def cpu_model() -> str | None:
    """The processor's name from the system; its architecture if there is no name."""
    name = _of_processor("model name")
    if name is not None:
        return name
    import platform

    return platform.machine() or None


def cpu_family() -> str | None:
    """The processor's family, which its name often does not tell on a virtual machine; None: it is another."""
    found = (_of_processor("vendor_id"), _of_processor("cpu family"), _of_processor("model\t"))
    return _FAMILIES.get(" ".join(filter(None, found)))


def cpu_16bit() -> list[str] | None:
    """The 16-bit types that the processor computes in, of bf16 and fp16; None: the system does not tell."""
    flags = set((_of_processor("flags", "Features") or "").split())
    return [kind for kind, known in _16BIT.items() if not flags.isdisjoint(known)] if flags else None


def _of_processor(*names: str) -> str | None:
    """What the system says of its first processor under one of these names; None: nothing."""
    try:
        lines = (_PROC / "cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), None)


def cpu_quota_cores() -> float | None:
    """How many cores' worth of time the control groups of this process allow; None: no limit.

    Inside a container the path of the group may not be visible. The root of the control groups is then used.
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
        ctypes.CDLL(_NVML)  # raises OSError without a driver; much faster than importing pynvml
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
