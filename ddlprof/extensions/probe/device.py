"""The device that is measured: one GPU of CUDA or ROCm, or the processor."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_EVERY_S = 0.1
_FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")


class ProbeDevice:
    """One device."""

    def __init__(self, torch: Any, index: int = 0) -> None:
        self.torch = torch
        self.is_gpu: bool = torch.cuda.is_available()
        self.index = index
        self.place = f"cuda:{index}" if self.is_gpu else "cpu"
        if self.is_gpu:
            torch.cuda.set_device(index)

    @property
    def name(self) -> str:
        """The name of the GPU by torch, or the model of the processor."""
        from ddlprof.collect.facts.machine import cpu_model

        return self.torch.cuda.get_device_name(self.index) if self.is_gpu else cpu_model() or "CPU"

    @property
    def memory_gib(self) -> float | None:
        """The memory of the GPU in GiB; None for a processor."""
        return self.torch.cuda.get_device_properties(self.index).total_memory / 2**30 if self.is_gpu else None

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability; (0, 0) for a processor."""
        return self.torch.cuda.get_device_capability(self.index) if self.is_gpu else (0, 0)

    def free_bytes(self) -> int:
        """The bytes of memory that may be used."""
        if self.is_gpu:
            return int(self.torch.cuda.mem_get_info(self.index)[0])
        with suppress(OSError, ValueError, AttributeError):
            return int(os.sysconf("SC_AVPHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))
        return 2**30

    def finish(self) -> None:
        """Waits until the device has done everything."""
        if self.is_gpu:
            self.torch.cuda.synchronize(self.index)

    def forget(self) -> None:
        """Frees memory that torch holds in reserve."""
        if self.is_gpu:
            self.torch.cuda.empty_cache()


class State:
    """Clock and power while something ran, as means. None: not known."""

    def __init__(self) -> None:
        self.clocks_mhz: list[float] = []
        self.powers_w: list[float] = []

    @property
    def clock_mhz(self) -> float | None:
        """The mean clock in MHz."""
        return sum(self.clocks_mhz) / len(self.clocks_mhz) if self.clocks_mhz else None

    @property
    def power_w(self) -> float | None:
        """The mean power in watts."""
        return sum(self.powers_w) / len(self.powers_w) if self.powers_w else None


@contextmanager
def watched(device: ProbeDevice, state: State) -> Iterator[None]:
    """While the block runs, adds the device's clock and power to `state` ten times a second, where they can be read."""
    done = threading.Event()

    def watch() -> None:
        with suppress(Exception):  # no NVML, or a driver without these readings
            while not done.wait(_EVERY_S):
                _read(device, state)

    thread = threading.Thread(target=watch, name="ddlprof-probe", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _read(device: ProbeDevice, state: State) -> None:
    if not device.is_gpu:
        state.clocks_mhz.append(int(_FREQUENCY.read_text(encoding="ascii")) / 1000)
        return
    cuda = device.torch.cuda
    state.clocks_mhz.append(float(cuda.clock_rate(device.index)))
    with suppress(Exception):  # some drivers give the clock but not the power
        power = float(cuda.power_draw(device.index))
        state.powers_w.append(power if device.torch.version.hip else power / 1000)  # ROCm: W, NVML: mW
