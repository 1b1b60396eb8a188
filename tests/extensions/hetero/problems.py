"""Small jobs and devices whose times are simple."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.extensions.hetero.devices import Devices, GpuNode
from ddlprof.extensions.hetero.problem import DeviceWork, GradientBucket, Problem


@dataclass(frozen=True)
class Linear:
    """Forward takes so many seconds for a sample, backward twice that; on each device."""

    each_s: tuple[float, ...]
    update_s: float = 0.0
    limits: tuple[int | None, ...] | None = None

    def work(self, device: int, samples: int) -> DeviceWork:
        seconds = self.each_s[device] * samples
        return DeviceWork(seconds, 2 * seconds, update_s=self.update_s)

    def most(self, device: int) -> int | None:
        return self.limits[device] if self.limits else None


def apart(count: int, gb_s: float = 1.0, latency_s: float = 0.0) -> Devices:
    """Machines with one GPU each."""
    return Devices(tuple(GpuNode(f"m{number}", 1, gb_s, gb_s) for number in range(count)), latency_s)


def problem(
    each_s: tuple[float, ...], sizes: tuple[float, ...], batch: int, devices: Devices | None = None,
    limits: tuple[int | None, ...] | None = None, update_s: float = 0.0,
) -> Problem:  # fmt: skip
    """Groups of these gradient bytes and equal computation."""
    groups = tuple(GradientBucket(f"g{number}", size, 1 / len(sizes)) for number, size in enumerate(sizes))
    return Problem(devices or apart(len(each_s)), groups, batch, Linear(each_s, update_s, limits))
