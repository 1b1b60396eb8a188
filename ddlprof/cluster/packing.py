"""Which machines a job gets: as few as can be, and those that leave the least free behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddlprof.cluster.jobs import JobState
from ddlprof.cluster.machines import Allocation, Cluster, Level


class FreeGpus:
    """The free GPUs of each machine while a decision is made.

    Machines with equally many free GPUs are the bits of one integer, so that a place among thousands of machines is
    found without a look at each.
    """

    def __init__(self, cluster: Cluster, held: Iterable[Allocation] = ()) -> None:
        self._cluster = cluster
        self.by_machine = cluster.gpus_by_machine.copy()
        self._with_free: list[int] | None = None
        """For each number of free GPUs, the machines with so many; made when the first place is asked for."""
        for allocation in held:
            for index, gpus in allocation.parts:
                self.by_machine[index] -= gpus

    def copy(self) -> FreeGpus:
        """The same GPUs, to be taken apart from these."""
        made = FreeGpus(self._cluster)
        made.by_machine = self.by_machine.copy()
        made._with_free = self._index().copy()
        return made

    @property
    def total(self) -> int:
        """All that are free."""
        return sum(self.by_machine)

    def take(self, allocation: Allocation) -> None:
        """Marks GPUs as used."""
        for index, gpus in allocation.parts:
            self._change(index, -gpus)

    def release(self, allocation: Allocation) -> None:
        """Marks GPUs as free."""
        for index, gpus in allocation.parts:
            self._change(index, gpus)

    def fits(self, allocation: Allocation) -> bool:
        """Whether exactly these GPUs are free."""
        return all(self.by_machine[index] >= gpus for index, gpus in allocation.parts)

    def place(
        self, gpus: int, level: Level = Level.NETWORK, gpu_models: Sequence[str | None] | None = None
    ) -> Allocation | None:
        """So many free GPUs of one model no further apart than `level`, as close together as can be; None: there are
        none. They are not taken yet.

        `gpu_models` are the models that will do, the best first; None: all of the cluster. A closer place comes before
        a better model: a policy that sees it the other way asks for one model after the other.
        """
        models = self._cluster.gpu_models if gpu_models is None else gpu_models
        for closest, find in ((Level.MACHINE, self._machine), (Level.RACK, self._rack), (Level.NETWORK, self._racks)):
            for gpu_model in models:
                if closest <= level and (found := find(gpus, gpu_model)) is not None:
                    return found
        return None

    def _change(self, index: int, gpus: int) -> None:
        free = self.by_machine[index]
        self.by_machine[index] = free + gpus
        if self._with_free is not None:
            bit = 1 << index
            self._with_free[free] ^= bit
            self._with_free[free + gpus] ^= bit

    def _index(self) -> list[int]:
        if self._with_free is None:
            found = [0] * (self._cluster.most_per_machine + 1)
            for index, free in enumerate(self.by_machine):
                found[free] |= 1 << index
            self._with_free = found
        return self._with_free

    def _machine(self, gpus: int, gpu_model: str | None) -> Allocation | None:
        mask = self._cluster.masks.get(gpu_model, 0)
        for machines in self._index()[gpus:]:
            if machines & mask:
                return Allocation(((_lowest(machines & mask), gpus),))
        return None

    def _free_of_racks(self, gpu_model: str | None) -> list[tuple[int, int, int]]:
        """(free GPUs, rack, its machines) of each rack with the model."""
        index = self._index()
        return [
            (sum(free * (index[free] & cell.mask).bit_count() for free in range(1, len(index))), cell.rack, cell.mask)
            for cell in self._cluster.cells
            if cell.gpu_model == gpu_model
        ]

    def _rack(self, gpus: int, gpu_model: str | None) -> Allocation | None:
        """In the rack that has the fewest free GPUs of those that have enough."""
        enough = [rack for rack in self._free_of_racks(gpu_model) if rack[0] >= gpus]
        return self._filled(min(enough)[2], gpus) if enough else None

    def _racks(self, gpus: int, gpu_model: str | None) -> Allocation | None:
        """In as few racks as can be."""
        chosen, count = 0, 0
        for free, _, mask in sorted(self._free_of_racks(gpu_model), key=lambda rack: (-rack[0], rack[1])):
            if count < gpus:
                chosen |= mask
                count += free
        return self._filled(chosen, gpus) if count >= gpus else None

    def _filled(self, mask: int, gpus: int) -> Allocation:
        """The fewest of these machines: the fullest first, the last one the tightest that is enough."""
        index, parts = self._index(), []
        while gpus:
            enough = [free for free in range(gpus, len(index)) if index[free] & mask]
            free = enough[0] if enough else max(free for free in range(len(index)) if index[free] & mask)
            machine = _lowest(index[free] & mask)
            mask ^= 1 << machine
            parts.append((machine, min(free, gpus)))
            gpus -= parts[-1][1]
        return Allocation(tuple(sorted(parts)))


class Running(list[JobState]):
    """The jobs that run, as a simulation hands them to a policy, with what would have to be counted anew at each
    of a million questions.
    """

    def __init__(self, states: Iterable[JobState], idle: FreeGpus, movable: list[JobState]) -> None:
        super().__init__(states)
        self.idle = idle
        """The GPUs that nobody holds; not to be changed."""
        self.movable = movable
        """Those of the jobs that no lease protects."""


def movable(running: Iterable[JobState], now_s: float) -> list[JobState]:
    """The jobs that no lease protects."""
    return running.movable if isinstance(running, Running) else [each for each in running if each.may_move(now_s)]


def idle_gpus(cluster: Cluster, running: Iterable[JobState]) -> FreeGpus:
    """The GPUs that nobody holds."""
    if isinstance(running, Running):
        return running.idle.copy()
    return FreeGpus(cluster, (state.allocation for state in running if state.allocation is not None))


def unprotected(cluster: Cluster, running: Iterable[JobState], now_s: float) -> FreeGpus:
    """The GPUs that no lease protects: those that nobody holds, and those of jobs that may be stopped."""
    if not isinstance(running, Running):
        return FreeGpus(cluster, kept(running, now_s))
    free = running.idle.copy()
    for state in running.movable:
        if state.allocation is not None:
            free.release(state.allocation)
    return free


def kept(running: Iterable[JobState], now_s: float) -> list[Allocation]:
    """What leases protect."""
    return [state.allocation for state in running if state.allocation is not None and not state.may_move(now_s)]


def _lowest(machines: int) -> int:
    return (machines & -machines).bit_length() - 1
