"""Which machines a job gets: as few as can be, and those that leave the least free behind."""

from __future__ import annotations

from collections.abc import Iterable

from ddlprof.cluster.jobs import JobState
from ddlprof.cluster.machines import Allocation, Cluster, Level


class FreeGpus:
    """The free GPUs of each machine while a decision is made."""

    def __init__(self, cluster: Cluster, held: Iterable[Allocation] = ()) -> None:
        self._cluster = cluster
        self.by_machine = [machine.gpus for machine in cluster.machines]
        for allocation in held:
            self.take(allocation)

    @property
    def total(self) -> int:
        """All that are free."""
        return sum(self.by_machine)

    def take(self, allocation: Allocation) -> None:
        """Marks GPUs as used."""
        for index, gpus in allocation.parts:
            self.by_machine[index] -= gpus

    def release(self, allocation: Allocation) -> None:
        """Marks GPUs as free."""
        for index, gpus in allocation.parts:
            self.by_machine[index] += gpus

    def fits(self, allocation: Allocation) -> bool:
        """Whether exactly these GPUs are free."""
        return all(self.by_machine[index] >= gpus for index, gpus in allocation.parts)

    def place(self, gpus: int, level: Level = Level.NETWORK) -> Allocation | None:
        """So many free GPUs no further apart than `level`, as close together as can be; None: there are none.

        They are not taken yet.
        """
        free = self.by_machine
        enough = [index for index, count in enumerate(free) if count >= gpus]
        if enough:
            return Allocation(((min(enough, key=lambda index: (free[index], index)), gpus),))
        if level == Level.MACHINE:
            return None
        racks: dict[int, list[int]] = {}
        for machine in self._cluster.machines:
            if free[machine.index]:
                racks.setdefault(machine.rack, []).append(machine.index)
        of_rack = {rack: sum(free[index] for index in indices) for rack, indices in racks.items()}
        enough = [rack for rack, count in of_rack.items() if count >= gpus]
        if enough:
            return self._filled(racks[min(enough, key=lambda rack: (of_rack[rack], rack))], gpus)
        if level == Level.RACK or self.total < gpus:
            return None
        order = sorted(racks, key=lambda rack: (-of_rack[rack], rack))
        chosen, count = [], 0
        for rack in order:
            if count < gpus:
                chosen += racks[rack]
                count += of_rack[rack]
        return self._filled(chosen, gpus)

    def _filled(self, indices: list[int], gpus: int) -> Allocation:
        """The fewest of these machines: the fullest first, the last one the tightest that is enough."""
        free, parts = self.by_machine, []
        left = sorted(indices, key=lambda index: (-free[index], index))
        while gpus:
            enough = [index for index in left if free[index] >= gpus]
            index = enough[-1] if enough else left[0]
            left.remove(index)
            parts.append((index, min(free[index], gpus)))
            gpus -= parts[-1][1]
        return Allocation(tuple(sorted(parts)))


def kept(running: Iterable[JobState], now_s: float) -> list[Allocation]:
    """What leases protect."""
    return [state.allocation for state in running if state.allocation is not None and not state.may_move(now_s)]
