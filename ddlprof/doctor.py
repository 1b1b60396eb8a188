"""Checks what can be measured on this machine, and why not: `all_checks` returns the checks of `ddlprof doctor`.

Never imports torch; a process of its own finds out what torch can do.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from ddlprof.base.package import FOLDER
from ddlprof.base.torch_needed import missing_torch
from ddlprof.model.checks import LIMITED, MISSING, OK, Check

_TORCH_TIMEOUT_S = 60
_OLDEST_TORCH = (2, 6)
_SHARED_MEMORY_BYTES = 2**30
"""Less free shared memory is reported. Containers get 64 MiB by default, which a few loader workers with images
fill."""
_FREE_DISK_BYTES = 2**28
"""Less free disk is reported. This is enough for a day of short steps of eight ranks; a run's size is bounded, too."""
_COARSE_CLOCK_S = 1e-6

_SCHEDSTAT = Path("/proc/self/schedstat")
_SHARED_MEMORY = Path("/dev/shm")
_RUNS = Path("ddlprof-runs")


def all_checks() -> list[Check]:
    """Every check, in the order in which they are shown."""
    answers, failure = ask_torch()
    return [
        check_platform(platform.system()),
        check_torch(answers, failure),
        *check_private_names(answers),
        check_cores(),
        check_clock(),
        check_hooks(),
        check_fetch_prep_split(),
        check_shared_memory(),
        check_run_directory(Path.cwd()),
        check_host_counters(),
        check_accelerator(answers),
        *([check_device_timeline(answers)] if answers.get("devices") else []),
        *(Check(name, LIMITED, lacking) for name, lacking in answers.get("limits", {}).items()),
        check_gpu_counters(),
        check_backends(answers),
        check_communication(answers),
        check_gloo_address(answers.get("gloo_address"), os.environ.get("GLOO_SOCKET_IFNAME")),
    ]


def ask_torch() -> tuple[dict[str, Any], str]:
    """The answers of a process that asks torch what it can do here; if it fails, no answers and the reason."""
    import json
    import subprocess

    root = os.path.dirname(FOLDER)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ddlprof.collect.facts.capabilities"],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=_TORCH_TIMEOUT_S,
            check=True,
        )
        answers = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {_TORCH_TIMEOUT_S} s"
    except subprocess.CalledProcessError as error:
        return {}, (error.stderr.splitlines() or [f"exit code {error.returncode}"])[-1]
    except (IndexError, ValueError):
        return {}, "no answer"
    return answers, ""


def check_platform(system: str) -> Check:
    """The operating system and Python."""
    here = f"{system}, Python {platform.python_version()}"
    if system == "Linux":
        return Check("platform", OK, here)
    if system == "Darwin":
        return Check(
            "platform", LIMITED, f"{here}: the steps are measured; data waits are not split into fetch and prep"
        )
    return Check("platform", LIMITED, f"{here}: made for Linux and macOS; on Windows use WSL 2")


def check_torch(answers: dict[str, Any], failure: str) -> Check:
    """Whether torch is installed, without which nothing works."""
    if not answers:
        if failure.endswith("No module named 'torch'"):
            return Check("torch", MISSING, missing_torch(), needed=True)
        meaning = f"cannot be imported by {sys.executable}: {failure}; install it there (pytorch.org/get-started)"
        return Check("torch", MISSING, meaning, needed=True)
    version = str(answers["torch"])
    oldest = ".".join(map(str, _OLDEST_TORCH))
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_TORCH:
        return Check(
            "torch", LIMITED, f"{version}: older than {oldest}, some hooks may not find their place; upgrade it", True
        )
    return Check("torch", OK, version, needed=True)


def check_private_names(answers: dict[str, Any]) -> list[Check]:
    """The private names of torch that the hooks use: one line if all exist, else one for each missing name."""
    found = answers.get("private_names")
    if found is None:
        return []
    here = f"torch {answers['torch']}"
    if not found["missing"]:
        return [Check("private names", OK, f"{here}: all {found['present']} private names found")]
    return [Check("private name", LIMITED, f"{here} has no {name}: {lost}") for name, lost in found["missing"].items()]


def check_cores() -> Check:
    """The processor time that this process may use."""
    from ddlprof.base.cores import available_cores
    from ddlprof.collect.facts.machine import cpu_model, cpu_quota_cores

    cores, quota = available_cores(), cpu_quota_cores()
    meaning = f"{cores} of {os.cpu_count()}, {cpu_model()}"
    if quota is not None and cores is not None and quota < cores:
        meaning += f"; a control group allows the time of {quota:g}: more loader workers than that wait for each other"
        return Check("cpu cores", LIMITED, meaning)
    return Check("cpu cores", OK, meaning)


def check_clock() -> Check:
    """The monotonic clock that all times are read from."""
    clock = time.get_clock_info("perf_counter")
    state = OK if clock.monotonic and clock.resolution <= _COARSE_CLOCK_S else LIMITED
    return Check("clock", state, f"{clock.implementation}, resolution {clock.resolution * 1e9:g} ns")


def check_hooks() -> Check:
    """Whether the code that runs at every event is the C core, not its slower replacement in Python."""
    from ddlprof.collect import core

    if core.IN_C:
        return Check("hooks", OK, "in C: a step is slowed down as little as can be")
    if os.environ.get(core.PYTHON_ONLY):
        return Check("hooks", LIMITED, f"in Python, as {core.PYTHON_ONLY} is set: each step takes longer by some 40 us")
    if core.STALE:
        return Check("hooks", LIMITED, f"in Python, as those in C are of an older checkout: {core.REBUILD}")
    meaning = "in Python: each step takes longer by some 40 us; for those in C, install a wheel or a C compiler"
    return Check("hooks", LIMITED, meaning)


def check_fetch_prep_split() -> Check:
    """Whether the kernel tells how long threads wait for a processor, which tells blocked from waiting loaders."""
    try:
        running_ns = int(_SCHEDSTAT.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        running_ns = 0
    if running_ns > 0:
        return Check(
            "fetch/prep split", OK, f"run-queue delay in {_SCHEDSTAT}: data waits are split into fetch and prep"
        )
    meaning = f"no run-queue delay in {_SCHEDSTAT}: data_s is measured, data_fetch_s and data_prep_s stay empty"
    return Check("fetch/prep split", MISSING, meaning)


def check_shared_memory() -> Check:
    """The shared memory in which loader workers hand over their batches."""
    from ddlprof.base.units import gib

    if not _SHARED_MEMORY.is_dir():
        return Check("shared memory", OK, "not a file system here: loader workers need no setting")
    usage = shutil.disk_usage(_SHARED_MEMORY)
    meaning = f"{gib(usage.free)} of {gib(usage.total)} free in {_SHARED_MEMORY}"
    if usage.free < _SHARED_MEMORY_BYTES:
        return Check(
            "shared memory", LIMITED, f"{meaning}: loader workers may die; start the container with --shm-size=2g"
        )
    return Check("shared memory", OK, meaning)


def check_run_directory(current: Path) -> Check:
    """The directory where runs are written by default."""
    from ddlprof.base.units import gib

    directory = current / _RUNS
    existing = directory if directory.exists() else current
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check("run directory", MISSING, f"{existing} cannot be written: use ddlprof run --out DIR")
    free = shutil.disk_usage(existing).free
    meaning = f"{directory}, {gib(free)} free"
    if free < _FREE_DISK_BYTES:
        return Check("run directory", LIMITED, f"{meaning}: use ddlprof run --out DIR on another disk")
    return Check("run directory", OK, meaning)


def check_host_counters() -> Check:
    """The counters of processor and memory use that are kept beside the steps."""
    from ddlprof.collect.facts.counters import ContextSampler

    if ContextSampler(0, time.perf_counter_ns).sample() is None:
        return Check(
            "host counters", MISSING, "psutil does not work: reports have no processor and memory use; reinstall it"
        )
    return Check("host counters", OK, "processor and memory use about once a second")


def check_accelerator(answers: dict[str, Any]) -> Check:
    """The devices that torch can use."""
    from ddlprof.collect.facts.machine import host_facts

    devices = answers.get("devices", [])
    if devices:
        return Check("accelerator", OK, f"{', '.join(devices)}: steps are timed on the device's own clock")
    present = host_facts().get("gpus", [])
    if present and answers:
        build = (
            f"CUDA {answers['cuda']} does not reach" if answers["cuda"] else "is built without CUDA and does not use"
        )
        meaning = f"torch {build} {', '.join(present)}: check the driver, CUDA_VISIBLE_DEVICES and the build of torch"
        return Check("accelerator", LIMITED, meaning)
    return Check(
        "accelerator", MISSING, "torch has no device here but the processor: steps are timed on the training thread"
    )


def check_device_timeline(answers: dict[str, Any]) -> Check:
    """Whether torch's profiler records the kernels of the device."""
    if answers["device_timeline"]:
        return Check("device timeline", OK, "torch.profiler sees kernels")
    return Check("device timeline", MISSING, "torch.profiler sees no kernels (CUPTI): idle_share stays empty")


def check_gpu_counters() -> Check:
    """NVML or amdsmi, which the counters of the GPU come from."""
    from ddlprof.collect.accelerator import amd
    from ddlprof.collect.facts.machine import host_facts

    facts = host_facts()
    if "gpu_driver" in facts:
        library = "amdsmi" if "gpu_architectures" in facts else "NVML"
        meaning = f"{library}, driver {facts['gpu_driver']}: use, memory and power of the device"
        return Check("gpu counters", OK, meaning)
    lacking = "no amdsmi (pip install 'ddlprof[amd]')" if amd.KFD.exists() else "no NVML (no NVIDIA driver)"
    return Check("gpu counters", MISSING, f"{lacking}: reports have no use, memory and power of the device")


def check_backends(answers: dict[str, Any]) -> Check:
    """The backends for distributed training."""
    backends = answers.get("backends", [])
    if not backends:
        return Check("distributed backends", MISSING, "torch has none: one process only")
    absent = [name for name in ("gloo", "nccl", "mpi") if name not in backends]
    return Check("distributed backends", OK, ", ".join(backends) + (f" (not {', '.join(absent)})" if absent else ""))


def check_communication(answers: dict[str, Any]) -> Check:
    """Whether the hooks in front of torch's collectives work, tried on one."""
    problem = answers.get("interception")
    if problem == "":
        return Check("communication", OK, "collectives are seen: exposed communication and straggler wait are measured")
    return Check("communication", MISSING, f"comm_s stays empty: {problem or 'torch.distributed is not there'}")


def check_gloo_address(address: str | None, interface: str | None) -> Check:
    """The network that gloo uses between machines."""
    import socket

    name = "gloo network"
    if interface:
        unknown = [part for part in interface.split(",") if part not in [known for _, known in socket.if_nameindex()]]
        if unknown:
            return Check(
                name, MISSING, f"GLOO_SOCKET_IFNAME names {', '.join(unknown)}, which this machine does not have"
            )
        return Check(name, OK, f"{interface}, from GLOO_SOCKET_IFNAME")
    if address is None:
        return Check(name, LIMITED, "the host name is no address of this machine: for several, set GLOO_SOCKET_IFNAME")
    if address.startswith("127.") or address == "::1":
        return Check(
            name,
            LIMITED,
            f"the host name is {address}, this machine only: for several, set GLOO_SOCKET_IFNAME",
        )
    return Check(name, OK, f"{address}, the address of the host name")
