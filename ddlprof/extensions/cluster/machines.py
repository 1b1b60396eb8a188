"""A cluster as racks of machines with GPUs, and the parts of it that a job gets."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

from ddlprof.base.errors import UserError
from ddlprof.instance_catalog import CatalogError, load

MAX_GPUS = 1_000_000
_GROUP = re.compile(r"(?:(\d+)x)?(\d+)x(\d+)(?::(.+))?")


class Level(IntEnum):
    """How far apart the GPUs of a job are."""

    MACHINE = 0
    RACK = 1
    NETWORK = 2


@dataclass(frozen=True)
class ClusterMachine:
    """One machine; its index is its place in `Cluster.machines`."""

    index: int
    rack: int
    gpus: int
    gpu_model: str | None = None
    """The GPU's name in the catalogue; None: the one on which the jobs were measured."""


@dataclass(frozen=True)
class Placement:
    """Where the GPUs of a job are, as far as its step time depends on it: how many on how many machines, but not which.

    `Allocation` says which machines these are. Tiresias and Gavel call a placement on as few machines as possible
    consolidated.
    """

    gpus_per_machine: tuple[int, ...]
    """GPUs used on each machine, most first."""
    racks: int = 1
    gpu_models: tuple[str | None, ...] = (None,)
    """The GPU models in use, each once, in the order of their names."""

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return sum(self.gpus_per_machine)

    @property
    def level(self) -> Level:
        """How far apart the GPUs are."""
        if self.racks > 1:
            return Level.NETWORK
        return Level.RACK if len(self.gpus_per_machine) > 1 else Level.MACHINE


@dataclass(frozen=True)
class Allocation:
    """The GPUs of one job, all at once or none."""

    parts: tuple[tuple[int, int], ...]
    """(index of the machine, GPUs there) by index, each once and with at least one GPU."""
    batch: int | None = None
    """The samples of one update over all GPUs; None: those that the job asked for."""

    @cached_property
    def gpus(self) -> int:
        """The number of GPUs."""
        return sum(gpus for _, gpus in self.parts)


@dataclass(frozen=True)
class MachineGroup:
    """The machines of one rack that have the same GPUs."""

    gpu_model: str | None
    rack: int
    mask: int
    """A bit for each machine of the cluster, set for those of the cell."""


@dataclass(frozen=True)
class Cluster:
    """Machines with GPUs, of one kind or several."""

    machines: tuple[ClusterMachine, ...]

    @cached_property
    def gpus_by_machine(self) -> list[int]:
        """The number of GPUs of each machine."""
        return [machine.gpus for machine in self.machines]

    @cached_property
    def cells(self) -> list[MachineGroup]:
        """The cells, by model and rack, in the order of their first machines."""
        masks: dict[tuple[str | None, int], int] = {}
        for machine in self.machines:
            key = machine.gpu_model, machine.rack
            masks[key] = masks.get(key, 0) | 1 << machine.index
        return [MachineGroup(*key, mask) for key, mask in masks.items()]

    @cached_property
    def masks(self) -> dict[str | None, int]:
        """For each GPU model a mask with one bit for each machine of the cluster, set if the machine has that model."""
        masks: dict[str | None, int] = {}
        for cell in self.cells:
            masks[cell.gpu_model] = masks.get(cell.gpu_model, 0) | cell.mask
        return masks

    @cached_property
    def gpus(self) -> int:
        """The number of all GPUs."""
        return sum(machine.gpus for machine in self.machines)

    @cached_property
    def most_per_machine(self) -> int:
        """The number of GPUs of the largest machine."""
        return max(machine.gpus for machine in self.machines)

    @cached_property
    def most_per_rack(self) -> int:
        """The number of GPUs of the largest rack."""
        racks: Counter[int] = Counter()
        for machine in self.machines:
            racks[machine.rack] += machine.gpus
        return max(racks.values())

    @cached_property
    def gpus_by_model(self) -> dict[str | None, int]:
        """The number of GPUs of each model."""
        models: Counter[str | None] = Counter()
        for machine in self.machines:
            models[machine.gpu_model] += machine.gpus
        return dict(models)

    @cached_property
    def most_of_one_model(self) -> int:
        """The number of GPUs of the most frequent model: no job can have more."""
        return max(self.gpus_by_model.values())

    @cached_property
    def gpu_models(self) -> tuple[str | None, ...]:
        """The GPU models of the cluster, each once."""
        return _distinct(machine.gpu_model for machine in self.machines)

    def placement(self, allocation: Allocation) -> Placement:
        """How close together the GPUs of an allocation are."""
        machines = [self.machines[index] for index, _ in allocation.parts]
        return Placement(
            gpus_per_machine=tuple(sorted((gpus for _, gpus in allocation.parts), reverse=True)),
            racks=len({machine.rack for machine in machines}),
            gpu_models=_distinct(machine.gpu_model for machine in machines),
        )

    def packed(self, gpus: int, gpu_model: str | None = None) -> Placement:
        """The consolidated placement on the empty cluster: `gpus` GPUs of a model, or all that there are, on as few
        machines and racks as possible."""
        key = gpus, gpu_model
        if key not in self._packed:
            self._packed[key] = self._pack(gpus, gpu_model)
        return self._packed[key]

    @cached_property
    def _packed(self) -> dict[tuple[int, str | None], Placement]:
        """The results of `packed` so far, by its arguments."""
        return {}

    def _pack(self, gpus: int, gpu_model: str | None) -> Placement:
        racks: dict[int, list[int]] = {}
        for machine in self.machines:
            if machine.gpu_model == gpu_model:
                racks.setdefault(machine.rack, []).append(machine.gpus)
        sizes = sorted((sorted(sizes, reverse=True) for sizes in racks.values()), key=sum, reverse=True)
        for rack in reversed(sizes):
            if sum(rack) >= gpus:
                return Placement(_filled(rack, gpus), 1, (gpu_model,))
        gpus_per_machine: list[int] = []
        used = 0
        for rack in sizes:
            if gpus:
                part = _filled(rack, min(gpus, sum(rack)))
                gpus_per_machine += part
                gpus -= sum(part)
                used += 1
        return Placement(tuple(sorted(gpus_per_machine, reverse=True)), max(used, 1), (gpu_model,))


def parse_cluster(text: str) -> Cluster:
    """Groups of machines with commas between them: `[RACKSx]MACHINESxGPUS[:MODEL]`, as `8x8`, `4x2x8:V100` (four racks
    of two machines with eight each) or `8x8:V100,16x4:T4`.

    Machines without racks are in one. Raises `UserError` for anything else.
    """
    machines: list[ClusterMachine] = []
    racks = 0
    for group in text.split(","):
        found = _GROUP.fullmatch(group.strip())
        if found is None or not all(1 <= int(n) <= MAX_GPUS for n in found.group(1, 2, 3) if n is not None):
            raise UserError(
                f"--cluster {text}: expected MACHINESxGPUS or RACKSxMACHINESxGPUS, each at least 1, with a GPU model"
                " after a colon if you like, as 8x8, 4x2x8:V100 or 8x8:V100,16x4:T4"
            )
        of_rack, gpus, model = int(found.group(2)), int(found.group(3)), found.group(4)
        count = int(found.group(1) or 1)
        if sum(machine.gpus for machine in machines) + count * of_rack * gpus > MAX_GPUS:
            raise UserError(f"--cluster {text}: more than {MAX_GPUS:,} GPUs")
        for number in range(count * of_rack):
            machines.append(ClusterMachine(len(machines), racks + number // of_rack, gpus, model))
        racks += count
    return Cluster(tuple(machines))


def with_catalogue_names(cluster: Cluster) -> Cluster:
    """The same cluster; a name in any spelling becomes that of the catalogue.

    Raises `UserError` naming the closest for a GPU that the catalogue does not know.
    """
    if cluster.gpu_models == (None,):
        return cluster
    catalog = load()
    try:
        names = {model: None if model is None else catalog.gpu(model).gpu_model for model in cluster.gpu_models}
    except CatalogError as error:
        raise UserError(f"--cluster: {error}") from None
    return Cluster(tuple(replace(machine, gpu_model=names[machine.gpu_model]) for machine in cluster.machines))


def _filled(sizes: Sequence[int], gpus: int) -> tuple[int, ...]:
    """The GPUs on each machine if the largest machines are filled first and the last is the smallest that is enough."""
    left, found = sorted(sizes), []
    while gpus > 0:
        size = left.pop(min(bisect_left(left, gpus), len(left) - 1))
        found.append(min(size, gpus))
        gpus -= found[-1]
    return tuple(sorted(found, reverse=True))


def _distinct(models: Iterable[str | None]) -> tuple[str | None, ...]:
    return tuple(sorted(set(models), key=lambda model: model or ""))
