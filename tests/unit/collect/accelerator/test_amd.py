"""Counters and facts of AMD's devices, from a stand-in with amdsmi's public functions."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof import doctor
from ddlprof.collect.accelerator import amd
from ddlprof.collect.accelerator.amd import AmdsmiCounters
from ddlprof.collect.accelerator.cuda import Cuda
from ddlprof.collect.facts import machine as facts_of_machine
from ddlprof.collect.facts.counters import ContextSampler
from ddlprof.collect.facts.machine import host_facts, versions
from ddlprof.model.checks import MISSING, OK

SERIALS = ["c6d3f0a1b2c3d4e5", "0f1e2d3c4b5a6978"]
NOT_TOLD = "N/A"


class FakeAmdsmi:
    """Two MI300X as amdsmi 6.4 shows them; `handles` are 0 and 1."""

    AmdSmiMemoryType = SimpleNamespace(VRAM="vram")
    AmdSmiClkType = SimpleNamespace(GFX="gfx")
    AmdSmiTemperatureType = SimpleNamespace(JUNCTION="junction")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self, count: int = 2) -> None:
        self.opened, self.count, self.partition = 0, count, "SPX"
        self.power: dict[str, Any] = {
            "current_socket_power": 612, "average_socket_power": NOT_TOLD, "power_limit": 750,
        }  # fmt: skip
        self.clock: dict[str, Any] = {"clk": 1_950, "max_clk": 2_100}

    def amdsmi_init(self) -> None:
        self.opened += 1

    def amdsmi_shut_down(self) -> None:
        self.opened -= 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(self.count))

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, Any]:
        return {"market_name": "AMD Instinct MI300X", "asic_serial": f"0x{SERIALS[handle].upper()}",
                "target_graphics_version": "gfx942"}  # fmt: skip

    def amdsmi_get_gpu_device_bdf(self, handle: int) -> str:
        return f"0000:{'05C1'[2 * handle : 2 * handle + 2]}:00.0"

    def amdsmi_get_gpu_compute_partition(self, handle: int) -> str:
        return self.partition

    def amdsmi_get_gpu_activity(self, handle: int) -> dict[str, Any]:
        return {"gfx_activity": 90 + handle, "umc_activity": 40, "mm_activity": NOT_TOLD}

    def amdsmi_get_gpu_memory_usage(self, handle: int, kind: str) -> int:
        return 1_000 + handle if kind == "vram" else 0

    def amdsmi_get_gpu_memory_total(self, handle: int, kind: str) -> int:
        return 206_141_652_992 if kind == "vram" else 0

    def amdsmi_get_power_info(self, handle: int) -> dict[str, Any]:
        return self.power

    def amdsmi_get_energy_count(self, handle: int) -> dict[str, Any]:
        return {"energy_accumulator": 2_000_000 + handle, "counter_resolution": 15.5, "timestamp": 1}

    def amdsmi_get_clock_info(self, handle: int, kind: str) -> dict[str, Any]:
        assert kind == "gfx"
        return self.clock

    def amdsmi_get_temp_metric(self, handle: int, kind: str, metric: str) -> int:
        return 60 + handle if (kind, metric) == ("junction", "current") else 0

    def amdsmi_get_gpu_driver_info(self, handle: int) -> dict[str, str]:
        return {"driver_name": "amdgpu", "driver_version": "6.12.12"}


def device(index: int, by: str = "serial") -> Any:
    """A device as torch describes it: its UUID holds the digits of the serial number as text."""
    uuid = SERIALS[index].encode().hex() if by == "serial" else "00" * 16
    place = {"pci_domain_id": 0, "pci_bus_id": (0x05, 0xC1)[index], "pci_device_id": 0} if by == "place" else {}
    return SimpleNamespace(name="AMD Instinct MI300X", uuid=uuid, gcnArchName="gfx942:sramecc+:xnack-", **place)


def fake_torch(reserved: list[int]) -> Any:
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: len(reserved),
        memory_reserved=lambda index: reserved[index],
        get_device_properties=device,
        **dict.fromkeys(("is_current_stream_capturing", "current_stream", "default_stream"), print),
        **dict.fromkeys(("Event", "Stream", "CUDAGraph")),
    )
    version = SimpleNamespace(cuda=None, hip="6.4.43483")
    return SimpleNamespace(cuda=cuda, version=version, _C=SimpleNamespace())


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeAmdsmi:
    """A machine with AMD's driver, and none of NVIDIA."""
    fake = FakeAmdsmi()
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(amd, "KFD", tmp_path / "kfd")
    return fake


def test_a_rank_reads_the_counters_of_the_device_it_computes_on(
    smi: FakeAmdsmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = [0, 5]
    monkeypatch.setitem(sys.modules, "torch", fake_torch(reserved))
    sampler = ContextSampler(100, itertools.count(150, 50).__next__)
    row = sampler.sample()
    assert row is not None
    assert (row.gpu_percent, row.gpu_memory_bytes, row.gpu_power_w, row.gpu_power_limit_w) == (91.0, 1_001, 612, 750)
    assert (row.gpu_clock_mhz, row.gpu_temperature_c, row.gpu_throttle_reasons) == (1_950, 61, None)
    assert row.gpu_energy_j == pytest.approx(31.0000155)
    reserved[:] = [9, 5]
    row = sampler.sample()
    assert row is not None
    assert (row.gpu_percent, row.gpu_memory_bytes, sampler.whose) == (90.0, 1_000, None)
    assert not sampler.drops.take()
    sampler.close()
    assert smi.opened == 0


@pytest.mark.parametrize("by", ["serial", "place"])
def test_devices_are_told_apart_by_serial_number_or_place(by: str, smi: FakeAmdsmi) -> None:
    counters = AmdsmiCounters(lambda: device(1, by))
    counters.look()
    assert counters.percent() == 91.0


def test_no_counters_rather_than_another_devices(smi: FakeAmdsmi) -> None:
    counters = AmdsmiCounters(lambda: device(1, "nothing"))
    with pytest.raises(LookupError, match="which of its 2 devices"):
        counters.look()
    assert counters.percent() is counters.memory_bytes() is counters.power_w() is None
    smi.count = 1
    counters.look()
    assert counters.percent() == 90.0


def test_what_a_device_or_a_version_of_the_library_gives_otherwise(smi: FakeAmdsmi) -> None:
    smi.power = {"average_socket_power": 301, "power_limit": 560_000_000}  # an MI250X; microwatts
    smi.clock, smi.partition = {"cur_clk": 1_700}, "CPX"
    counters = AmdsmiCounters(lambda: device(0))
    counters.look()
    assert (counters.power_w(), counters.power_limit_w(), counters.clock_mhz()) == (301, 560, 1_700)
    assert "all its partitions" in str(counters.whose)
    smi.power = {"average_socket_power": NOT_TOLD}
    assert counters.power_w() is counters.power_limit_w() is None


def test_a_missing_library_costs_only_the_counters(smi: FakeAmdsmi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setitem(sys.modules, "torch", fake_torch([5]))
    sampler = ContextSampler(0, itertools.count().__next__)
    row = sampler.sample()
    assert row is not None
    assert row.gpu_percent is row.gpu_memory_bytes is None
    (drop,) = sampler.drops.take()
    assert drop.reason.startswith("device: ModuleNotFoundError")
    assert "gpus" not in host_facts()
    sampler.close()


def test_the_manifest_names_devices_and_their_architecture(smi: FakeAmdsmi, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = host_facts()
    assert facts["gpus"] == ["AMD Instinct MI300X"] * 2
    assert facts["gpu_architectures"] == ["gfx942"] * 2
    assert facts["gpu_memory_bytes"] == [206_141_652_992] * 2
    assert facts["gpu_driver"] == "6.12.12"
    assert smi.opened == 0
    monkeypatch.setitem(sys.modules, "torch", fake_torch([]))
    assert versions(())["hip"] == "6.4.43483"
    assert "cuda" not in versions(())


def test_the_library_is_not_imported_where_there_is_no_driver(
    smi: FakeAmdsmi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(amd, "KFD", tmp_path / "none")
    monkeypatch.setattr(facts_of_machine, "_NVML", "libno-such-driver.so.1")
    smi.opened = 1
    assert "gpus" not in host_facts()
    assert smi.opened == 1


def test_doctor_names_the_library_or_how_to_get_it(smi: FakeAmdsmi, monkeypatch: pytest.MonkeyPatch) -> None:
    check = doctor.check_gpu_counters()
    assert (check.state, check.meaning.startswith("amdsmi, driver 6.12.12")) == (OK, True)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    check = doctor.check_gpu_counters()
    assert (check.state, "ddlprof[amd]" in check.meaning) == (MISSING, True)


def test_each_maker_has_its_own_counters() -> None:
    torch = fake_torch([5])
    assert isinstance(Cuda(torch).counters(), AmdsmiCounters)
    torch.version = SimpleNamespace(cuda="12.8", hip=None)
    assert not isinstance(Cuda(torch).counters(), AmdsmiCounters)
