"""GPUs on offer to jobs that bid one after another: whoever bids earlier may take what later bidders hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ddlprof.cluster.jobs import JobState
from ddlprof.cluster.machines import Allocation, Cluster, Level
from ddlprof.cluster.packing import idle_gpus, unprotected


class Offers:
    """What is free, what is idle, and who still holds what it may lose."""

    def __init__(
        self, cluster: Cluster, running: Iterable[JobState], bidders: Sequence[JobState], now_s: float
    ) -> None:
        """`bidders` are in the order of their bids. Those that run hold their GPUs until another takes them."""
        self._cluster = cluster
        self._free = unprotected(cluster, running, now_s)
        self._idle = idle_gpus(cluster, running)
        self._held: dict[str, Allocation] = {}
        self._holders: dict[int, list[str]] = {}
        self._refused = dict.fromkeys(Level, math.inf)
        """The fewest GPUs that there were not, by level: there is less and less for those who bid later."""
        for state in bidders:
            if state.allocation is not None:
                self._held[state.job.job_id] = state.allocation
                for index, _ in state.allocation.parts:
                    self._holders.setdefault(index, []).append(state.job.job_id)

    def keep(self, state: JobState) -> Allocation | None:
        """Leaves a job what it holds; None: it holds nothing, or no longer."""
        own = self._held.pop(state.job.job_id, None)
        if own is not None:
            self._free.take(own)
        return own

    def bid(self, state: JobState, level: Level, gpus: int | None = None) -> Allocation | None:
        """So many GPUs for a job (None: those it asks for), no further apart than `level`, as close together as can be;
        None: there are none.

        It keeps those that it holds if they are as many, no further apart than that, and no others are closer together.
        Idle ones are preferred to those of others.
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
        """How far apart GPUs are."""
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
        """Takes GPUs, from the last bidders on these machines where they are not idle: a job loses all or none."""
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
