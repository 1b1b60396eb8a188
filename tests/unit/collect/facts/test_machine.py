"""Counters and facts of the machine, with fake drivers and for real."""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import sys
import time
from collections import namedtuple
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.collect.facts import counters as counters_of_machine
from ddlprof.collect.facts import machine as facts_of_machine
from ddlprof.collect.facts.counters import ContextSampler, peak_rss_bytes
from ddlprof.collect.facts.machine import (
    cpu_quota_cores,
    host_facts,
    platform_name,
    versions,
)
from ddlprof.collect.facts.worker_memory import WorkerMemory
from ddlprof.instance_catalog.processors import single_thread_speed

CpuTimes = namedtuple("CpuTimes", ["user", "system", "idle", "iowait", "guest", "guest_nice"])


class FakePsutil:
    def __init__(self, times: list[CpuTimes]) -> None:
        self.times = iter(times)

    def cpu_times(self) -> CpuTimes:
        return next(self.times)

    def virtual_memory(self) -> Any:
        return SimpleNamespace(used=7_000, total=16_000)

    def Process(self, _: int) -> Any:
        return SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=123, shared=23))


class FakeNvml:
    """Two devices, and a slice of one; counts how often it was opened."""

    uuids = ("GPU-aaaa", "GPU-bbbb", "MIG-cccc")
    processes = 1

    def __init__(self) -> None:
        self.opened = 0

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid not in self.uuids:
            raise self.NVMLError("Not Found")
        return self.uuids.index(uuid)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if handle != 1:
            raise self.NVMLError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"Tesla T{handle}"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=90 + handle)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=1_000 + handle, total=8_000)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 70_500

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        if handle == 0:
            raise self.NVMLError("Not Supported")
        return 12_345_678

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 300_000

    def nvmlDeviceGetClockInfo(self, handle: int, which: int) -> int:
        return 1_500 + handle if which == self.NVML_CLOCK_SM else 0

    def nvmlDeviceGetTemperature(self, handle: int, which: int) -> int:
        return 60 + handle if which == self.NVML_TEMPERATURE_GPU else 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0x20 * handle

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [object()] * self.processes

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"


def fake_torch(reserved: list[int], uuids: list[str]) -> Any:
    """A torch whose process has reserved that much on its visible devices."""
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: len(reserved),
        memory_reserved=lambda index: reserved[index],
        get_device_properties=lambda index: SimpleNamespace(uuid=uuids[index]),
        **dict.fromkeys(("is_current_stream_capturing", "current_stream", "default_stream"), fail),
        **dict.fromkeys(("Event", "Stream", "CUDAGraph")),
    )
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="12.8", hip=None), _C=SimpleNamespace())


def fail() -> None:
    raise AssertionError("the counters have no use for it")


def sampler() -> ContextSampler:
    return ContextSampler(origin_ns=100, clock=itertools.count(150, 50).__next__)


def test_the_processor_is_busy_between_two_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [CpuTimes(10, 5, 85, 0, 0, 0), CpuTimes(40, 15, 125, 20, 10, 0), CpuTimes(40, 15, 125, 20, 10, 0)]
    monkeypatch.setitem(sys.modules, "psutil", FakePsutil(times))
    counters = sampler()
    first, second, third = counters.sample(), counters.sample(), counters.sample()
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.time_ns, first.cpu_percent, first.memory_used_bytes, first.process_rss_bytes) == (
        50,
        None,
        7_000,
        123,
    )
    assert first.process_private_bytes == 100
    # 100 ticks later: 60 idle or waiting for a disk; the guest's 10 are in the user's 30 already
    assert (second.time_ns, second.cpu_percent) == (100, 40.0)
    assert third.cpu_percent is None


def test_the_memory_of_a_process_is_read_once_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Process:
        def memory_info(self) -> Any:
            asked.append(len(asked))
            return SimpleNamespace(rss=100 * len(asked), shared=30)

    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(Process=lambda _: Process()))
    counters = sampler()
    rows = [counters.sample(), counters.sample()]
    assert [(row.process_rss_bytes, row.process_private_bytes) for row in rows if row] == [(100, 70), (200, 170)]
    assert len(asked) == 2


def test_the_device_with_the_process_memory_is_looked_up_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, reserved = FakeNvml(), [0, 0]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    # CUDA_VISIBLE_DEVICES=1,0: torch's device 0 is NVML's device 1
    monkeypatch.setitem(sys.modules, "torch", fake_torch(reserved, ["bbbb", "aaaa"]))
    counters = sampler()
    before = counters.sample()
    assert before is not None
    assert (before.gpu_percent, nvml.opened) == (None, 0)
    reserved[0] = 10
    row = counters.sample()
    assert row is not None
    assert (row.gpu_percent, row.gpu_memory_bytes, row.gpu_power_w, nvml.opened) == (91.0, 1_001, 70.5, 1)
    assert (row.gpu_clock_mhz, row.gpu_temperature_c, row.gpu_throttle_reasons) == (1_501.0, 61.0, 0x20)
    assert (row.gpu_power_limit_w, row.gpu_energy_j) == (300.0, 12_345.678)
    reserved[1] = 20  # the first one was only touched
    row = counters.sample()
    assert row is not None
    assert (row.gpu_percent, row.gpu_memory_bytes, nvml.opened) == (90.0, 1_000, 1)
    assert row.gpu_energy_j is None
    assert not counters.drops.take()
    counters.close()
    counters.close()
    assert nvml.opened == 0


def test_a_failure_disables_only_its_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, asked = FakeNvml(), []

    def unsupported(handle: int) -> int:
        asked.append(handle)
        raise RuntimeError("not supported")

    monkeypatch.setattr(nvml, "nvmlDeviceGetPowerUsage", unsupported)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setitem(sys.modules, "torch", fake_torch([1], ["aaaa"]))
    monkeypatch.setitem(sys.modules, "psutil", None)
    counters = sampler()
    rows = [counters.sample(), counters.sample()]
    assert [(r.gpu_percent, r.gpu_power_w, r.memory_used_bytes) for r in rows if r] == [(90.0, None, None)] * 2
    assert asked == [0]


def test_nothing_available_is_no_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(WorkerMemory, "look", lambda self: None)  # of children of other tests
    monkeypatch.setattr(counters_of_machine, "_PROC", tmp_path)
    for name in ("psutil", "pynvml", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    assert sampler().sample() is None


@pytest.mark.parametrize(("text", "queued_ns"), [("7000 500 3\n", 500), ("0 0 0\n", None), (None, None)])
def test_how_long_the_main_thread_waited_for_a_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, queued_ns: int | None
) -> None:
    monkeypatch.setattr(counters_of_machine, "_PROC", tmp_path)
    (tmp_path / "self").mkdir()
    if text is not None:
        (tmp_path / "self/schedstat").write_text(text)
    counters = sampler()
    row = counters.sample()
    assert row is not None
    assert row.process_queued_ns == queued_ns
    assert not counters.drops.take()


@pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="the system does not list them"
)
def test_the_processor_time_of_the_job_has_that_of_its_children() -> None:
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        counters = sampler()
        first = counters.sample()
        assert first is not None
        while (now := counters.sample()) is not None and now.job_cpu_ns == first.job_cpu_ns:
            time.sleep(0.01)
        before = time.process_time_ns()
        while (now := counters.sample()) is not None and (now.job_cpu_ns or 0) - (first.job_cpu_ns or 0) < 200_000_000:
            time.sleep(0.05)
        assert time.process_time_ns() - before < 200_000_000  # so it was the child's
    finally:
        burning.kill()
        burning.wait()


def test_sampling_does_not_import_torch_or_numpy() -> None:
    program = (
        "import sys, time; from ddlprof.collect.facts.counters import ContextSampler;"
        "from ddlprof.collect.facts.machine import host_facts, versions;"
        "ContextSampler(0, time.perf_counter_ns).sample(); host_facts(); versions(('torch',));"
        "sys.exit(bool({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


def test_host_facts_name_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    facts = host_facts()
    assert facts["gpus"] == ["Tesla T0", "Tesla T1"]
    assert facts["gpu_memory_bytes"] == [8_000, 8_000]
    assert facts["gpu_driver"] == "570.1"
    assert nvml.opened == 0
    assert facts["memory_bytes"] > 0
    assert 1 <= facts["available_cores"] <= facts["logical_cores"]


@pytest.mark.parametrize(
    ("uuid", "processes", "whose"),
    [("aaaa", 1, None), ("aaaa", 3, "all the 3 processes"), ("cccc", 1, "this MIG slice"), ("bbbb", 1, "all its MIG")],
)
def test_whose_counters_they_are(uuid: str, processes: int, whose: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that share a GPU, or have a slice of one, do not read the others' figures as their own."""
    nvml = FakeNvml()
    nvml.processes = processes
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setitem(sys.modules, "torch", fake_torch([1], [uuid]))
    sampler = ContextSampler(0, time.perf_counter_ns)
    assert sampler.whose is None
    sampler.sample()
    assert (sampler.whose is None) if whose is None else whose in str(sampler.whose)
    sampler.close()


def test_versions_leave_out_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch([], []))
    found = versions(("pytest", "no-such-distribution"))
    assert found == {"python": found["python"], "pytest": pytest.__version__, "cuda": "12.8"}


def test_versions_are_those_of_the_installed_metadata(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Found by a look at sys.path, or by importlib.metadata where that is not enough."""
    put(tmp_path / "Plain-9.dist-info/METADATA", "Metadata-Version: 2.1\nName: Plain\nVersion: 1.2+cpu\n\nVersion: 3\n")
    put(tmp_path / "old-9.egg-info/PKG-INFO", "Metadata-Version: 2.1\nName: old\nVersion: 0.5\n\n")
    put(tmp_path / "bare-9.dist-info/METADATA", "Metadata-Version: 2.1\nName: bare\n\nVersion: 3\n")
    (tmp_path / "second").mkdir()
    put(tmp_path / "second/plain-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: plain\nVersion: 7\n\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), str(tmp_path), str(tmp_path / "second")])
    assert facts_of_machine._plain_version("plain") == metadata.version("plain") == "1.2+cpu"
    assert facts_of_machine._plain_version("old") is facts_of_machine._plain_version("bare") is None
    monkeypatch.setitem(sys.modules, "torch", None)
    assert versions(("plain", "old", "none")) == {"python": platform.python_version(), "plain": "1.2+cpu", "old": "0.5"}


def test_the_platform_is_named_as_python_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = platform.platform()
    monkeypatch.setattr(subprocess, "check_output", lambda *args, **kwargs: pytest.fail("started a process"))
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        assert platform_name() == usual
    monkeypatch.setattr(os, "confstr", lambda name: None)  # another libc
    monkeypatch.setattr(platform, "platform", lambda: "usual")
    assert platform_name() == "usual"


def test_nvml_is_not_imported_where_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(facts_of_machine, "_NVML", "libno-such-driver.so.1")
    assert "gpus" not in host_facts()
    assert "pynvml" not in sys.modules


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty /proc, /sys/fs/cgroup and /sys/class/dmi/id."""
    monkeypatch.setattr(facts_of_machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(counters_of_machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(facts_of_machine, "_DMI", tmp_path / "dmi")
    monkeypatch.setattr(facts_of_machine, "_CGROUP", tmp_path / "cgroup")
    return tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("vendor", "product", "found"),
    [
        ("Amazon EC2", "p4d.24xlarge", "p4d.24xlarge"),
        ("Xen", "HVM domU", None),
        ("Google", "Google Compute Engine", None),
        (None, None, None),
    ],
)
def test_the_type_of_a_cloud_machine(vendor: str | None, product: str | None, found: str | None, machine: Path) -> None:
    for name, text in (("sys_vendor", vendor), ("product_name", product)):
        if text is not None:
            put(machine / "dmi" / name, text + "\n")
    assert host_facts().get("instance_type") == found


def test_the_tightest_quota_of_the_groups_above_holds(machine: Path) -> None:
    put(machine / "proc/self/cgroup", "0::/slice/job\n")
    put(machine / "cgroup/slice/job/cpu.max", "max 100000\n")
    put(machine / "cgroup/slice/cpu.max", "250000 100000\n")
    assert cpu_quota_cores() == 2.5
    put(machine / "cgroup/slice/job/cpu.max", "50000 100000\n")
    assert cpu_quota_cores() == 0.5


def test_a_container_sees_its_group_as_the_root(machine: Path) -> None:
    put(machine / "proc/self/cgroup", "0::/host/path/not/visible\n")
    put(machine / "cgroup/cpu.max", "400000 100000\n")
    assert cpu_quota_cores() == 4.0


def test_quotas_of_version_1(machine: Path) -> None:
    put(machine / "proc/self/cgroup", "3:cpuset:/a\n2:cpu,cpuacct:/a\n0::/\n")
    put(machine / "cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "150000\n")
    put(machine / "cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n")
    assert cpu_quota_cores() == 1.5
    put(machine / "cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n")
    assert cpu_quota_cores() is None


def test_without_proc_facts_are_fewer(machine: Path) -> None:
    assert cpu_quota_cores() is None
    assert facts_of_machine.cpu_model() == os.uname().machine


@pytest.mark.parametrize(
    ("line", "types"),
    [
        ("flags\t\t: fpu avx2 f16c", []),
        ("flags\t\t: avx512f avx512_bf16", ["bf16"]),
        ("flags\t\t: amx_bf16 avx512_fp16", ["bf16", "fp16"]),
        ("Features\t: fp asimd fphp asimdhp bf16", ["bf16", "fp16"]),
        ("vendor_id\t: unknown", None),
    ],
)
def test_16_bit_types_that_the_processor_has(machine: Path, line: str, types: list[str] | None) -> None:
    put(machine / "proc/cpuinfo", f"processor\t: 0\n{line}\n")
    assert facts_of_machine.cpu_16bit() == types


@pytest.mark.parametrize(
    ("lines", "family"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n", "Genoa"),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon\n", "Sapphire Rapids"),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 25\nmodel\t\t: 17\n", None),
        ("CPU implementer\t: 0x41\n", None),
    ],
)
def test_a_family_that_the_name_of_the_processor_does_not_tell(machine: Path, lines: str, family: str | None) -> None:
    put(machine / "proc/cpuinfo", f"processor\t: 0\n{lines}")
    assert facts_of_machine.cpu_family() == family


def test_the_speed_of_every_family_is_known() -> None:
    assert [name for name in facts_of_machine._FAMILIES.values() if single_thread_speed(name) is None] == []


def test_peak_memory_is_that_of_the_process_itself(machine: Path) -> None:
    put(machine / "proc/self/status", "Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n")
    assert peak_rss_bytes() == 2048 * 1024
