"""The counters of NVIDIA's devices, from NVML: the library of its driver."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ddlprof.collect.accelerator.nvml_health import NvmlHealth

_OF_SLICE = "memory is that of this MIG slice; its use and power are not told"
_OF_SLICES = "the GPU's counters are of all its MIG slices, not of this one"
_OF_PROCESSES = "the GPU's counters are of all the {} processes on it, not of this one"


class NvmlCounters:
    """NVML's counters of the device with the UUID that `uuid` returns; all are None while it returns None."""

    def __init__(self, uuid: Callable[[], str | None]) -> None:
        self._uuid = uuid
        self._nvml: Any = None
        self._of: str | None = None
        """The UUID of the device that was found."""
        self._handle: Any = None
        self._health: NvmlHealth | None = None
        self.whose: str | None = None
        """A name for what the counters cover, if that is not one process on a whole GPU."""

    def percent(self) -> float | None:
        """The share of time in which a kernel ran, in per cent."""
        handle = self._handle
        return None if handle is None else float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    def memory_bytes(self) -> int | None:
        """The memory in use by all processes, in bytes."""
        handle = self._handle
        return None if handle is None else int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)

    def power_w(self) -> float | None:
        """The power draw in watts."""
        handle = self._handle
        return None if handle is None else self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000

    def power_limit_w(self) -> float | None:
        """The power limit that the driver enforces, in watts."""
        handle = self._handle
        return None if handle is None else self._nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000

    def clock_mhz(self) -> float | None:
        """The clock of the multiprocessors in MHz."""
        handle = self._handle
        return None if handle is None else float(self._nvml.nvmlDeviceGetClockInfo(handle, self._nvml.NVML_CLOCK_SM))

    def temperature_c(self) -> float | None:
        """The temperature of the chip in degrees Celsius."""
        if (handle := self._handle) is None:
            return None
        return float(self._nvml.nvmlDeviceGetTemperature(handle, self._nvml.NVML_TEMPERATURE_GPU))

    def throttle_reasons(self) -> int | None:
        """The reasons for which the clock is held down, as bits."""
        handle = self._handle
        return None if handle is None else int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    def energy_j(self) -> float | None:
        """The energy taken since the driver was loaded, in joules; Volta and newer. None for a slice of a GPU."""
        if (handle := self._handle) is None or self.whose == _OF_SLICE:
            return None
        taken_mj = self._answer(lambda: int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)))
        return None if taken_mj is None else taken_mj / 1000

    def health(self) -> dict[tuple[str, str], int]:
        """Errors of memory, links and bus, by name and place; Xid errors by their number."""
        if self._handle is None:
            return {}
        if self._health is None:
            self._health = NvmlHealth(self._nvml, self._handle)
        return self._health.read()

    def close(self) -> None:
        """Closes the driver's library."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = self._handle = self._of = self._health = None

    def look(self) -> None:
        """Finds the device again: a rank may have used another device before its own."""
        uuid = self._uuid()
        if uuid is None or uuid == self._of:
            return
        if self._nvml is None:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._nvml = nvml
        self._of, self._handle, self.whose = uuid, *self._found(uuid)
        self._health = None

    def _found(self, uuid: str) -> tuple[Any, str | None]:
        """NVML's handle, and what its counters cover. For a MIG slice NVML may return the whole GPU or the slice."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except nvml.NVMLError:
            return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}"), _OF_SLICE
        if self._answer(lambda: nvml.nvmlDeviceGetMigMode(handle)[0]):
            return handle, _OF_SLICES
        processes = self._answer(lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle))) or 1
        return handle, _OF_PROCESSES.format(processes) if processes > 1 else None

    def _answer(self, question: Callable[[], int]) -> int | None:
        try:
            return question()
        except self._nvml.NVMLError:  # the driver or the device does not support it
            return None
