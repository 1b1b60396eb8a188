"""NVML's counters of one device."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_OF_SLICE = "memory is that of this MIG slice; its use and power are not told"
_OF_SLICES = "the GPU's counters are of all its MIG slices, not of this one"
_OF_PROCESSES = "the GPU's counters are of all the {} processes on it, not of this one"


class NvmlCounters:
    """The counters of the device that `uuid` names now, without NVML's prefix; None while it names none."""

    def __init__(self, uuid: Callable[[], str | None]) -> None:
        self._uuid = uuid
        self._nvml: Any = None
        self._of: str | None = None
        """The device's UUID."""
        self._handle: Any = None
        self.whose: str | None = None
        """Whose they are, where they are not those of one process on a whole GPU."""

    def percent(self) -> float | None:
        """The share of the time in which a kernel ran."""
        handle = self._handle
        return None if handle is None else float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    def memory_bytes(self) -> int | None:
        """The memory in use by any process."""
        handle = self._handle
        return None if handle is None else int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)

    def power_w(self) -> float | None:
        """Now."""
        handle = self._handle
        return None if handle is None else self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000

    def power_limit_w(self) -> float | None:
        """The cap that the driver enforces now."""
        handle = self._handle
        return None if handle is None else self._nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000

    def clock_mhz(self) -> float | None:
        """The clock of the multiprocessors now."""
        handle = self._handle
        return None if handle is None else float(self._nvml.nvmlDeviceGetClockInfo(handle, self._nvml.NVML_CLOCK_SM))

    def temperature_c(self) -> float | None:
        """Of the chip, now."""
        if (handle := self._handle) is None:
            return None
        return float(self._nvml.nvmlDeviceGetTemperature(handle, self._nvml.NVML_TEMPERATURE_GPU))

    def throttle_reasons(self) -> int | None:
        """What holds the clock down now, as bits."""
        handle = self._handle
        return None if handle is None else int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    def close(self) -> None:
        """Gives the driver's library back."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = self._handle = self._of = None

    def look(self) -> None:
        """Finds the device: a rank may have touched another one before its own."""
        uuid = self._uuid()
        if uuid is None or uuid == self._of:
            return
        if self._nvml is None:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._nvml = nvml
        self._of, self._handle, self.whose = uuid, *self._found(uuid)

    def _found(self, uuid: str) -> tuple[Any, str | None]:
        """The handle, and whose its counters are. Of a slice the driver may name the GPU, or the slice itself."""
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
        except self._nvml.NVMLError:  # a driver or a device that does not tell
            return None
