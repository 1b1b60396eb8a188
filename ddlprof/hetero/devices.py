"""The GPUs that a job could use, which need not be alike, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

LATENCY_S = 12e-6
"""From a transfer's begin to its first byte, where nobody says: what HeteroG's simulator adds to each (CoNEXT 2020)."""


@dataclass(frozen=True)
class GpuNode:
    """GPUs of one kind, and the links that they share. Speeds are those of one direction."""

    name: str
    gpus: int
    link_gb_s: float
    """Between two of its GPUs."""
    network_gb_s: float | None = None
    """To all other machines together; None: there is no network."""
    gpu_model: str | None = None
    """What a predictor knows of the GPU: this, or the instance type."""
    instance_type: str | None = None
    memory_gib: float | None = None
    """The nominal memory of one GPU; None: not known."""


@dataclass(frozen=True)
class Device:
    """One GPU."""

    index: int
    machine: int
    name: str
    kind: str
    """GPUs of one kind are equally fast."""


@dataclass(frozen=True)
class Devices:
    """All of them, in the order of their machines."""

    machines: tuple[GpuNode, ...]
    latency_s: float = LATENCY_S

    @cached_property
    def all(self) -> tuple[Device, ...]:
        """Every GPU, by its index."""
        found: list[Device] = []
        for number, machine in enumerate(self.machines):
            for gpu in range(machine.gpus):
                name = machine.name if machine.gpus == 1 else f"{machine.name}/{gpu}"
                found.append(Device(len(found), number, name, machine.gpu_model or machine.instance_type or name))
        return tuple(found)

    def __len__(self) -> int:
        return len(self.all)

    def slowest_gb_s(self, used: tuple[int, ...]) -> float:
        """The speed of a ring through these devices: that of its slowest link.

        It enters and leaves each machine once, whatever the number of its GPUs.
        """
        machines = [self.all[index].machine for index in used]
        distinct = set(machines)
        speeds = [self.machines[number].link_gb_s for number in distinct if machines.count(number) > 1]
        if len(distinct) > 1:
            speeds += [self.machines[number].network_gb_s or 0.0 for number in distinct]
        return min(speeds)
