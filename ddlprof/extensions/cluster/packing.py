"""Chooses the machines of a job: as few as possible, and those on which the fewest GPUs stay free (best fit).

`FreeGpus` finds places; `PriorityAllocator` gives them to jobs in order of priority and preempts other jobs for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

from ddlprof.extensions.cluster.jobs import JobState
from ddlprof.extensions.cluster.machines import Allocation, Cluster, Level


class FreeGpus:
    """The free GPUs of each machine while a decision is made.

    Machines with equally many free GPUs are the bits of one integer, so that a place among thousands of machines is
    found without looking at each.
    """

    def __init__(self, cluster: Cluster, held: Iterable[Allocation] = ()) -> None:
        self._cluster = cluster
        self.by_machine = cluster.gpus_by_machine.copy()
        self._with_free: list[int] | None = None
        """For each number of free GPUs, a bit mask of the machines with so many; made at the first search."""
        for allocation in held:
            for index, gpus in allocation.parts:
                self.by_machine[index] -= gpus

    def copy(self) -> FreeGpus:
        """A copy that does not change with this one."""
        made = FreeGpus(self._cluster)
        made.by_machine = self.by_machine.copy()
        made._with_free = self._index().copy()
        return made

    @property
    def total(self) -> int:
        """The number of free GPUs."""
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
        """Finds free GPUs of one model, no further apart than `level` and as close together as possible; None: there
        are not enough. It does not take them.

        `gpu_models` are the models to look for, the best first; None: all of the cluster. A closer placement is
        preferred to a better model; a policy that prefers the model asks for one model after the other.
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
        """GPUs in the rack with the fewest free GPUs of those that have enough."""
        enough = [rack for rack in self._free_of_racks(gpu_model) if rack[0] >= gpus]
        return self._filled(min(enough)[2], gpus) if enough else None

    def _racks(self, gpus: int, gpu_model: str | None) -> Allocation | None:
        """GPUs in as few racks as possible."""
        chosen, count = 0, 0
        for free, _, mask in sorted(self._free_of_racks(gpu_model), key=lambda rack: (-rack[0], rack[1])):
            if count < gpus:
                chosen |= mask
                count += free
        return self._filled(chosen, gpus) if count >= gpus else None

    def _filled(self, mask: int, gpus: int) -> Allocation:
        """GPUs on the fewest of these machines: those with the most free GPUs first, and the best fit for the rest."""
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
    """The running jobs as a simulation passes them to a policy, with two results of all of them.

    They are kept up to date, as computing them anew at each of millions of decisions would take too long.
    """

    def __init__(self, states: Iterable[JobState], idle: FreeGpus, movable: list[JobState]) -> None:
        super().__init__(states)
        self.idle = idle
        """The GPUs that no job holds. Must not be changed."""
        self.movable = movable
        """The jobs that may be preempted, as no lease protects them."""


def movable(running: Iterable[JobState], now_s: float) -> list[JobState]:
    """The jobs that may be preempted, as no lease protects them."""
    return running.movable if isinstance(running, Running) else [each for each in running if each.may_move(now_s)]


def idle_gpus(cluster: Cluster, running: Iterable[JobState]) -> FreeGpus:
    """The GPUs that no job holds."""
    if isinstance(running, Running):
        return running.idle.copy()
    return FreeGpus(cluster, (state.allocation for state in running if state.allocation is not None))


def unprotected(cluster: Cluster, running: Iterable[JobState], now_s: float) -> FreeGpus:
    """The GPUs that no lease protects: those that no job holds, and those of jobs that may be preempted."""
    if not isinstance(running, Running):
        return FreeGpus(cluster, kept(running, now_s))
    free = running.idle.copy()
    for state in running.movable:
        if state.allocation is not None:
            free.release(state.allocation)
    return free


def kept(running: Iterable[JobState], now_s: float) -> list[Allocation]:
    """The allocations that leases protect."""
    return [state.allocation for state in running if state.allocation is not None and not state.may_move(now_s)]


class PriorityAllocator:
    """Gives GPUs to jobs in order of priority: a job may take those of preemptible jobs of lower priority.

    A job that is neither given GPUs nor keeps its own is preempted.
    """

    def __init__(self, cluster: Cluster, running: Iterable[JobState], jobs: Sequence[JobState], now_s: float) -> None:
        """`jobs` are in order of priority, the first first. Running ones hold their GPUs until another takes them."""
        self._cluster, self._running, self._now_s = cluster, running, now_s
        self._held = {each.job.job_id: each.allocation for each in jobs if each.allocation and each.allocation.gpus}
        """The GPUs that running jobs hold, in order of priority, until they are kept or taken."""
        self._kept: list[Allocation] = []
        self._refused = dict.fromkeys(Level, math.inf)
        """By level, the smallest number of GPUs that could not be found. Jobs of lower priority cannot find as many
        either."""

    # The next three are made when GPUs are first looked for: mostly every job keeps its own.

    @cached_property
    def _free(self) -> FreeGpus:
        """The GPUs that no job of higher priority has."""
        free = unprotected(self._cluster, self._running, self._now_s)
        for allocation in self._kept:
            free.take(allocation)
        return free

    @cached_property
    def _idle(self) -> FreeGpus:
        """The GPUs that nobody holds."""
        return idle_gpus(self._cluster, self._running)

    @cached_property
    def _holders(self) -> dict[int, list[str]]:
        """By machine, the jobs that may lose their GPUs there, the first to lose them last."""
        holders: dict[int, list[str]] = {}
        for job_id, allocation in self._held.items():
            for index, _ in allocation.parts:
                holders.setdefault(index, []).append(job_id)
        return holders

    def keep(self, state: JobState) -> Allocation | None:
        """Lets a job keep its GPUs; None: it has none, or a job of higher priority took them."""
        own = self._held.pop(state.job.job_id, None)
        if own is not None:
            if "_free" in self.__dict__:
                self._free.take(own)
            else:
                self._kept.append(own)
        return own

    def allocate(self, state: JobState, level: Level, gpus: int | None = None) -> Allocation | None:
        """Gives a job `gpus` GPUs (None: as many as it asks for), no further apart than `level` and as close together
        as possible; None: there are not enough.

        It keeps those that it holds if they are as many, no further apart than `level`, and none are closer together.
        Idle GPUs are preferred to those of other jobs.
        """
        gpus = gpus or state.job.gpus
        own = self._held.pop(state.job.job_id, None)
        if own is not None:
            self._idle.release(own)
            own = own if own.gpus == gpus else None
        wanted = None if gpus >= self._refused[level] else self._closest(gpus, level)
        if own is not None and self.level(own) <= level and (wanted is None or self.level(own) <= self.level(wanted)):
            wanted = own
        if wanted is None:
            self._refused[level] = min(self._refused[level], gpus)
        else:
            self._take(wanted)
        return wanted

    def level(self, allocation: Allocation) -> Level:
        """How far apart the GPUs of an allocation are."""
        if len(allocation.parts) == 1:
            return Level.MACHINE
        machines = self._cluster.machines
        racks = {machines[index].rack for index, _ in allocation.parts}
        return Level.NETWORK if len(racks) > 1 else Level.RACK

    def _closest(self, gpus: int, level: Level) -> Allocation | None:
        idle = self._idle.place(gpus, level)
        if not self._held or (idle is not None and self.level(idle) == Level.MACHINE):
            return idle
        free = self._free.place(gpus, level)
        if idle is not None and (free is None or self.level(idle) <= self.level(free)):
            return idle
        return free

    def _take(self, wanted: Allocation) -> None:
        """Takes GPUs. Where they are not idle, it preempts the jobs of the lowest priority on these machines."""
        for index, gpus in wanted.parts:
            while self._idle.by_machine[index] < gpus:
                self._idle.release(self._held.pop(self._last_holder(index)))
        self._free.take(wanted)
        self._idle.take(wanted)

    def _last_holder(self, index: int) -> str:
        holders = self._holders[index]
        while holders[-1] not in self._held:
            holders.pop()
        return holders[-1]


def _lowest(machines: int) -> int:
    return (machines & -machines).bit_length() - 1
