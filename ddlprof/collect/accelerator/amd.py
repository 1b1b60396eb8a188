"""The counters of AMD's devices, from amdsmi: the library of its driver, which torch's own `torch.cuda` reads, too.

`pip install "ddlprof[amd]"` brings it, and so does ROCm itself. Without it nothing is counted and a note says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddlprof.base.guarded import attempt

KFD = Path("/dev/kfd")
"""The device file of AMD's driver for computing. Without it, the library is not even imported."""
_MICRO_FROM = 1e5
"""Limits of power beyond this are microwatts, as some versions of the library give them."""
_WHOLE = ("SPX", "N/A", "")
"""The partitions of a GPU in which it is one device."""
_OF_PARTITIONS = "the GPU's counters are of all its partitions, not of this one"


class AmdsmiCounters:
    """Counters of the device whose properties (torch's) `properties` returns; all are None while it returns None."""

    def __init__(self, properties: Callable[[], Any]) -> None:
        self._properties = properties
        self._smi: Any = None
        self._of: str | None = None
        """A name for the device that was found."""
        self._handle: Any = None
        self.whose: str | None = None
        """A name for what the counters cover, if that is not one process on a whole GPU."""

    def percent(self) -> float | None:
        """The share of time in which the compute units were busy, in per cent."""
        if self._handle is None:
            return None
        return _number(self._smi.amdsmi_get_gpu_activity(self._handle), "gfx_activity")

    def memory_bytes(self) -> int | None:
        """The memory in use by all processes, in bytes."""
        if self._handle is None:
            return None
        return int(self._smi.amdsmi_get_gpu_memory_usage(self._handle, self._smi.AmdSmiMemoryType.VRAM))

    def power_w(self) -> float | None:
        """The power draw in watts: the present one (MI300 and newer), or its mean (older devices)."""
        if self._handle is None:
            return None
        return _number(self._smi.amdsmi_get_power_info(self._handle), "current_socket_power", "average_socket_power")

    def power_limit_w(self) -> float | None:
        """The power limit that the driver enforces, in watts."""
        if self._handle is None:
            return None
        limit = _number(self._smi.amdsmi_get_power_info(self._handle), "power_limit")
        return limit / 1e6 if limit is not None and limit >= _MICRO_FROM else limit

    def clock_mhz(self) -> float | None:
        """The clock of the compute units in MHz."""
        if self._handle is None:
            return None
        clocks = self._smi.amdsmi_get_clock_info(self._handle, self._smi.AmdSmiClkType.GFX)
        return _number(clocks, "clk", "cur_clk")

    def temperature_c(self) -> float | None:
        """The temperature of the chip's hottest place in degrees Celsius."""
        if self._handle is None:
            return None
        smi = self._smi
        kind, now = smi.AmdSmiTemperatureType.JUNCTION, smi.AmdSmiTemperatureMetric.CURRENT
        return float(smi.amdsmi_get_temp_metric(self._handle, kind, now))

    def throttle_reasons(self) -> int | None:
        """None: the bits of AMD's devices differ between them and are not those of NVML."""
        return None

    def energy_j(self) -> float | None:
        """The energy taken so far, in joules: the accumulator times its resolution, which is in microjoules."""
        if self._handle is None:
            return None
        found = self._smi.amdsmi_get_energy_count(self._handle)
        count, unit_uj = _number(found, "energy_accumulator", "power"), _number(found, "counter_resolution")
        return None if count is None or unit_uj is None else count * unit_uj / 1e6

    def health(self) -> dict[tuple[str, str], int]:
        """Errors of memory and bus, by name; the second part of each key is empty."""
        if self._handle is None:
            return {}
        errors = attempt(lambda: self._smi.amdsmi_get_gpu_total_ecc_count(self._handle)) or {}
        link = attempt(lambda: self._smi.amdsmi_get_pcie_info(self._handle)) or {}
        now, most = link.get("pcie_metric", {}), _number(link.get("pcie_static", {}), "max_pcie_width")
        width = _number(now, "pcie_width")
        found = {
            "gpu_ecc_corrected": _number(errors, "correctable_count"),
            "gpu_ecc_uncorrected": _number(errors, "uncorrectable_count"),
            "pcie_replays": _number(now, "pcie_replay_count"),
            "pcie_lanes_missing": most - width if most is not None and width is not None else None,
        }
        return {(name, ""): int(value) for name, value in found.items() if value is not None}

    def close(self) -> None:
        """Closes the driver's library."""
        if self._smi is not None:
            self._smi.amdsmi_shut_down()
            self._smi = self._handle = self._of = None

    def look(self) -> None:
        """Finds the device again: a rank may have used another device before its own. Raises LookupError if the
        library does not know it."""
        properties = self._properties()
        if properties is None:
            return
        name = _name(properties)
        if name == self._of:
            return
        if self._smi is None:
            self._smi = opened()
        self._handle, self.whose = None, None
        self._handle = self._found(properties)
        self._of = name
        self.whose = None if self._partition() in _WHOLE else _OF_PARTITIONS

    def _found(self, properties: Any) -> Any:
        """The handle of a device, by its serial number, or else its place on the bus: the library shows devices that
        HIP_VISIBLE_DEVICES hides, too."""
        handles = self._smi.amdsmi_get_processor_handles()
        serial, place = _serial(properties), _place(properties)
        for handle in handles:
            if serial is not None and serial == _asic_serial(self._smi.amdsmi_get_gpu_asic_info(handle)):
                return handle
        for handle in handles:
            if place is not None and str(self._smi.amdsmi_get_gpu_device_bdf(handle)).lower().startswith(place):
                return handle
        if len(handles) == 1:
            return handles[0]
        raise LookupError(f"amdsmi does not tell which of its {len(handles)} devices {properties.name} is")

    def _partition(self) -> str:
        try:
            return str(self._smi.amdsmi_get_gpu_compute_partition(self._handle))
        except Exception:  # devices without partitions, and older versions of the library
            return ""


def gpu_facts() -> dict[str, Any]:
    """Names, architectures (gfx942, ...), memory and driver of this machine's devices, as the manifest has them.

    Raises OSError where there is no driver, and what the library raises.
    """
    if not KFD.exists():
        raise FileNotFoundError(KFD)
    smi = opened()
    try:
        handles = smi.amdsmi_get_processor_handles()
        asics = [smi.amdsmi_get_gpu_asic_info(handle) for handle in handles]
        vram = smi.AmdSmiMemoryType.VRAM
        return {
            "gpus": [str(asic["market_name"]) for asic in asics],
            "gpu_architectures": [_architecture(asic) for asic in asics],
            "gpu_memory_bytes": [int(smi.amdsmi_get_gpu_memory_total(handle, vram)) for handle in handles],
            "gpu_driver": str(smi.amdsmi_get_gpu_driver_info(handles[0])["driver_version"]),
        }
    finally:
        smi.amdsmi_shut_down()


def opened() -> Any:
    """The library, ready to be asked. Raises ImportError without it, and its own error without a driver."""
    try:
        smi = importlib.import_module("amdsmi")
    except (KeyError, OSError) as error:  # its package is there, ROCm's library is not
        raise ImportError(f"amdsmi finds no library of ROCm: {error}") from None
    smi.amdsmi_init()
    return smi


def _number(found: Any, *names: str) -> float | None:
    """The first of these that the device tells; the library writes N/A for the others."""
    values = (found.get(name) for name in names)
    return next((float(value) for value in values if isinstance(value, (int, float))), None)


def _architecture(asic: Any) -> str | None:
    """Such as gfx942; None from versions of the library that do not name it."""
    found = str(asic.get("target_graphics_version", ""))
    return found if found.startswith("gfx") else None


def _asic_serial(asic: Any) -> str:
    return str(asic.get("asic_serial", "")).lower().removeprefix("0x")


def _serial(properties: Any) -> str | None:
    """The serial number in torch's UUID of a device, whose bytes are its sixteen digits as text."""
    try:
        return bytes.fromhex(str(properties.uuid).replace("-", "")).decode("ascii").lower()
    except (AttributeError, UnicodeDecodeError, ValueError):
        return None


def _place(properties: Any) -> str | None:
    """The place on the bus, without the function: 0000:c1:00."""
    try:
        return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}"
    except AttributeError:  # older versions of torch
        return None


def _name(properties: Any) -> str:
    return f"{_serial(properties)} {_place(properties)} {properties.name}"
