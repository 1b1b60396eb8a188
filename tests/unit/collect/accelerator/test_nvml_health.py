"""What NVML counts of a GPU that is not well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ddlprof.collect.accelerator.nvml_health import NvmlHealth
from ddlprof.model.health import COUNTERS

HANDLE = 7


class FakeNvml:
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
    NVML_NVLINK_ERROR_DL_REPLAY, NVML_NVLINK_ERROR_DL_RECOVERY, NVML_NVLINK_ERROR_DL_CRC_FLIT = 0, 1, 2
    nvmlEventTypeXidCriticalError = 8

    class NVMLError(Exception):
        pass

    def __init__(self, ecc: bool = True, links: tuple[int, ...] = (0, 1)) -> None:
        self.ecc, self.links = ecc, links
        self.xids: list[int] = []
        self.registered: list[tuple[int, int, str]] = []

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        if not self.ecc:
            raise self.NVMLError("Not Supported")
        return (5, 1)[kind] if (handle, counter) == (HANDLE, self.NVML_VOLATILE_ECC) else 0

    def nvmlDeviceGetRemappedRows(self, handle: int) -> list[int]:
        return [2, 1, 1, 0]

    def nvmlDeviceGetPcieReplayCounter(self, handle: int) -> int:
        return 11

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return 16

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return 8

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= 6:
            raise self.NVMLError("Invalid Argument")
        return int(link in self.links)

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, link: int, kind: int) -> int:
        assert link in self.links
        return 100 * link + kind

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceRegisterEvents(self, handle: int, kind: int, events: str) -> None:
        self.registered.append((handle, kind, events))

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:
        assert (events, timeout_ms) == ("events", 0)
        if not self.xids:
            raise self.NVMLError("Timeout")
        return SimpleNamespace(eventData=self.xids.pop(0))


def test_every_counter_by_its_name() -> None:
    nvml = FakeNvml()
    health = NvmlHealth(nvml, HANDLE)
    assert nvml.registered == [(HANDLE, 8, "events")]
    nvml.xids = [79, 79, 31]
    assert health.read() == {
        ("gpu_ecc_corrected", ""): 5, ("gpu_ecc_uncorrected", ""): 1, ("gpu_remapped_rows", ""): 3,
        ("pcie_replays", ""): 11, ("pcie_lanes_missing", ""): 8, ("nvlink_errors", ""): 306,
        ("gpu_xid", "79"): 2, ("gpu_xid", "31"): 1,
    }  # fmt: skip
    nvml.xids = [79]
    assert health.read()["gpu_xid", "79"] == 3
    assert {name for name, _ in health.read()} == {name for name in COUNTERS if COUNTERS[name].of_device}


def test_what_a_gpu_or_an_older_library_lacks_is_left_out() -> None:
    class Older(FakeNvml):
        nvmlDeviceGetRemappedRows = property()
        nvmlEventSetCreate = property()

    found = NvmlHealth(Older(ecc=False, links=()), HANDLE).read()
    assert {name for name, _ in found} == {"pcie_replays", "pcie_lanes_missing"}
