"""NVML's counters of one device."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


class NvmlCounters:
    """The counters of the device that `uuid` names, from when it names one; None before."""

    def __init__(self, uuid: Callable[[], str | None]) -> None:
        self._uuid = uuid
        self._nvml: Any = None
        self._handle: Any = None
        self.whose: str | None = None
        """Whose they are, where they are not those of one process on a whole GPU."""

    def percent(self) -> float | None:
        """The share of the time in which a kernel ran."""
        handle = self._device()
        return None if handle is None else float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    def memory_bytes(self) -> int | None:
        """The memory in use by any process."""
        handle = self._device()
        return None if handle is None else int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)

    def power_w(self) -> float | None:
        """Now."""
        handle = self._device()
        return None if handle is None else self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000

    def power_limit_w(self) -> float | None:
        """The cap that the driver enforces now."""
        handle = self._device()
        return None if handle is None else self._nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000

    def clock_mhz(self) -> float | None:
        """The clock of the multiprocessors now."""
        handle = self._device()
        return None if handle is None else float(self._nvml.nvmlDeviceGetClockInfo(handle, self._nvml.NVML_CLOCK_SM))

    def temperature_c(self) -> float | None:
        """Of the chip, now."""
        if (handle := self._device()) is None:
            return None
        return float(self._nvml.nvmlDeviceGetTemperature(handle, self._nvml.NVML_TEMPERATURE_GPU))

    def throttle_reasons(self) -> int | None:
        """What holds the clock down now, as bits."""
        handle = self._device()
        return None if handle is None else int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    def close(self) -> None:
        """Gives the driver's library back."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = self._handle = None

    def _device(self) -> Any:
        if self._handle is None and (uuid := self._uuid()) is not None:
            if self._nvml is None:
                nvml = importlib.import_module("pynvml")
                nvml.nvmlInit()
                self._nvml = nvml
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            if uuid.startswith("MIG-"):
                self.whose = "memory is that of this MIG slice; its use and power are not told"
            elif (processes := self._processes()) > 1:
                self.whose = f"the GPU's counters are of all the {processes} processes on it, not of this one"
        return self._handle

    def _processes(self) -> int:
        try:
            return len(self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        except Exception:  # a driver that does not tell
            return 1
