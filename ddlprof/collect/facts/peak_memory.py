"""The most memory that this process has held so far: high-water marks that the system and torch keep anyway.

Nothing is reset, since the script may read the same marks. Where it resets torch's itself, they are of the time since.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ddlprof.base.guarded import attempt
from ddlprof.collect.accelerator import known
from ddlprof.collect.accelerator.clock import DeviceClock
from ddlprof.collect.facts.machine import peak_rss_bytes


class Peaks(NamedTuple):
    """None: not known, or there is no device. The names are those of `ddlprof.model.records.ContextRow`."""

    process_peak_rss_bytes: int | None = None
    gpu_peak_allocated_bytes: int | None = None
    """The memory allocated by tensors."""
    gpu_peak_reserved_bytes: int | None = None
    """The memory that torch's allocator took from the device, cached blocks included."""


class PeakMemory:
    """Readings by the helper thread: they take 0.1 ms, and nothing of the training thread."""

    def __init__(self) -> None:
        self.last = Peaks()

    def read(self, clock: DeviceClock | None = None) -> int | None:
        """What a step's record holds: allocated on the device whose clock times the steps, without one resident."""
        resident = self._never_less(attempt(peak_rss_bytes))
        if clock is None:
            self.last = Peaks(resident)
            return resident
        allocated, reserved = attempt(lambda: _held(clock.stream.device)) or (None, None)
        self.last = Peaks(resident, allocated, reserved)
        return allocated

    def _never_less(self, resident: int | None) -> int | None:
        """Linux adds up what its processors counted, now and then, so that its own mark may fall by some pages."""
        before = self.last.process_peak_rss_bytes
        return resident if resident is None or before is None else max(resident, before)


def _held(device: Any) -> tuple[int | None, int | None]:
    accelerator = known.in_use()
    if accelerator is None:
        return None, None
    return accelerator.peak_allocated_bytes(device), accelerator.peak_reserved_bytes(device)
