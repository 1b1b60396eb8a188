"""Dally: jobs wait for consolidated GPUs (delay scheduling), for a time that is learned; slowed jobs choose first.

Sharma, Bhasi, Singh, Kesidis, Kandemir, Das: "Dally", 2024, arXiv 2401.16492, and the authors' simulator.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import JobState
from ddlprof.extensions.cluster.machines import Cluster, Level
from ddlprof.extensions.cluster.packing import PriorityAllocator, movable, unprotected
from ddlprof.extensions.cluster.policy import Decision
from ddlprof.extensions.cluster.speeds import Speeds

AUTO = -1.0
LEASE_S = 1200.0
LEAST_RACK_DELAY, LEAST_NETWORK_DELAY = 6, 12
"""The delays, in leases, that hold without a history; no learned delay is shorter."""
_MOST_OF_HISTORY = 0.8
_SIGMAS = 2
_SLACK_S = 1e-3
"""More than the rounding error of a wait."""


class Dally:
    """Delay timers for each level, their tuner, and preemption of jobs that the network slows least.

    A job whose lease is over competes for GPUs as waiting jobs do. It may lose its own to others; it also gives them up
    if they are further apart than its delay allows by now.
    """

    round_s = None

    def __init__(
        self,
        rack_delay: float = AUTO,
        network_delay: float = AUTO,
        lease_s: float = LEASE_S,
        history: float = 72.0,
        max_wait: float = math.inf,
    ) -> None:
        """Delays, history and `max_wait` in leases; -1: the delay is learned from the history.

        A job that has waited for `max_wait` in all goes first from then on, the oldest of several, and takes GPUs
        however far apart. Until there are enough for it, nobody behind it gets any, so it waits for a lease more at
        most, and for older jobs like it.
        """
        are_positive = all(each > 0 for each in (lease_s, history, max_wait))
        if not (are_positive and all(d == AUTO or d >= 0 for d in (rack_delay, network_delay))):
            raise UserError(
                "--policy dally: lease_s, history and max_wait must be more than 0, delays 0 or more, or -1 (learned)"
            )
        self._max_wait_s = max_wait * lease_s
        self._delays = {Level.RACK: rack_delay, Level.NETWORK: network_delay}
        self.lease_s, self._history = lease_s, history
        self._waits: dict[tuple[Level, int], deque[tuple[float, float]]] = {}
        self._ideal_gpu_s: dict[str, float] = {}

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """Gives GPUs to all jobs that no lease protects, those that the network slowed most first."""
        room = unprotected(cluster, running, now_s).total
        # Larger jobs are left out, which is faster than to sort all; more free GPUs lead to another decision.
        bidders = (state for state in queue if state.job.gpus <= room or self._is_overdue(state, now_s))
        jobs = [*bidders, *movable(running, now_s)]
        if len(jobs) > 1:
            jobs.sort(key=lambda state: self._order(state, now_s, cluster, predictor))
        allocator, given, wake_s = (
            PriorityAllocator(cluster, running, jobs, now_s),
            {},
            self._next_overdue_s(queue, now_s),
        )
        delays = {gpus: self.delays_s(gpus, now_s, cluster) for gpus in {state.job.gpus for state in jobs}}
        for state in jobs:
            gpus, since_s = state.job.gpus, state.assigned_s
            rack_s, network_s = delays[gpus]
            is_overdue = self._is_overdue(state, now_s)
            level = Level.NETWORK if is_overdue else allowed(now_s, since_s, rack_s, network_s)
            wanted = allocator.allocate(state, level)
            if wanted is not None:
                given[state.job.job_id] = wanted
                if state.allocation is None:
                    self._note(now_s, now_s - since_s, gpus, allocator.level(wanted))
            elif is_overdue:
                break
            elif level < Level.NETWORK:
                wake_s = min(wake_s, since_s + (rack_s if level == Level.MACHINE else network_s))
        return Decision(given, wake_s if wake_s < math.inf else None)

    def _waited_s(self, state: JobState, now_s: float) -> float:
        """The seconds without GPUs so far, the present wait included."""
        return state.waited_s + (now_s - state.changed_s if state.allocation is None else 0.0)

    def _is_overdue(self, state: JobState, now_s: float) -> bool:
        return self._max_wait_s < math.inf and self._waited_s(state, now_s) >= self._max_wait_s - _SLACK_S

    def _next_overdue_s(self, queue: Sequence[JobState], now_s: float) -> float:
        """When the next job that waits has waited for too long; infinity: none has."""
        if self._max_wait_s == math.inf:
            return math.inf
        left_s = (self._max_wait_s - self._waited_s(state, now_s) for state in queue)
        return min((now_s + each for each in left_s if each > _SLACK_S), default=math.inf)

    def delays_s(self, gpus: int, now_s: float, cluster: Cluster) -> tuple[float, float]:
        """The seconds for which a job waits for GPUs in one machine, and for GPUs in one rack, before it takes
        others."""
        rack, network = self._delays[Level.RACK], self._delays[Level.NETWORK]
        if rack == AUTO:
            rack = tuned_rack_delay(self._seen(Level.MACHINE, gpus, now_s), self._history)
        if network == AUTO:
            network = tuned_network_delay(self._seen(Level.RACK, gpus, now_s), self._history)
        if gpus > cluster.most_per_machine:
            rack = 0.0
        if gpus > cluster.most_per_rack:
            network = 0.0
        return rack * self.lease_s, network * self.lease_s

    def _order(
        self, state: JobState, now_s: float, cluster: Cluster, predictor: Speeds
    ) -> tuple[float, int, float, str]:
        held = state.allocation.gpus if state.allocation is not None else 0
        if self._is_overdue(state, now_s):
            return -1.0, 0, state.job.submit_s, state.job.job_id
        return self.efficiency(state, now_s, cluster, predictor), held, state.assigned_s, state.job.job_id

    def efficiency(self, state: JobState, now_s: float, cluster: Cluster, predictor: Speeds) -> float:
        """The GPU time of its work on the best placement divided by the GPU time that it took; 0 for new jobs."""
        if not state.starts:
            return 0.0
        job, held_gpu_s = state.job, state.held_at(now_s)
        if held_gpu_s <= 0:
            return 0.0
        if job.job_id not in self._ideal_gpu_s:
            placements = (cluster.packed(job.gpus, model) for model in cluster.gpu_models)
            steps = (
                predictor.step(job, placement, job.batch).step_s
                for placement in placements
                if placement.gpus == job.gpus
            )
            self._ideal_gpu_s[job.job_id] = min(steps) / job.batch * job.gpus
        return state.done_at(now_s) * self._ideal_gpu_s[job.job_id] / held_gpu_s

    def _note(self, now_s: float, waited_s: float, gpus: int, level: Level) -> None:
        if waited_s >= self.lease_s and level != Level.NETWORK:
            self._waits.setdefault((level, gpus), deque()).append((now_s, waited_s / self.lease_s))

    def _seen(self, level: Level, gpus: int, now_s: float) -> list[float]:
        waits = self._waits.get((level, gpus))
        if not waits:
            return []
        while waits and waits[0][0] < now_s - self._history * self.lease_s:
            waits.popleft()
        return [wait for _, wait in waits]


class Consolidate(Dally):
    """Full consolidation: Dally with infinite delays. A job that fits a machine, or a rack, waits until one is free."""

    def __init__(self, lease_s: float = LEASE_S, max_wait: float = math.inf) -> None:
        super().__init__(rack_delay=math.inf, network_delay=math.inf, lease_s=lease_s, max_wait=max_wait)


class NoWait(Dally):
    """Dally with both delays 0: a job takes the closest GPUs as soon as there are enough."""

    def __init__(self, lease_s: float = LEASE_S, max_wait: float = math.inf) -> None:
        super().__init__(rack_delay=0.0, network_delay=0.0, lease_s=lease_s, max_wait=max_wait)


def allowed(now_s: float, since_s: float, rack_s: float, network_s: float) -> Level:
    """How far apart GPUs may be at `now_s` for a job that has waited since `since_s`."""
    if now_s >= since_s + network_s:
        return Level.NETWORK
    return Level.RACK if now_s >= since_s + rack_s else Level.MACHINE


def tuned_rack_delay(waits: Iterable[float], history: float) -> float:
    """The leases to wait for one machine, from the waits of jobs of this size."""
    return min(math.ceil(_MOST_OF_HISTORY * history), max(LEAST_RACK_DELAY, _usual(waits)))


def tuned_network_delay(waits: Iterable[float], history: float) -> float:
    """The leases to wait for one rack, from the waits of jobs of this size."""
    return min(history, max(LEAST_NETWORK_DELAY, _usual(waits)))


def _usual(waits: Iterable[float]) -> int:
    """The mean wait plus two standard deviations, in whole leases; 1 if there were none."""
    known = list(waits)
    if not known:
        return 1
    mean = sum(known) / len(known)
    variance = sum((wait - mean) ** 2 for wait in known) / len(known)
    return math.ceil(mean + _SIGMAS * math.sqrt(variance))
