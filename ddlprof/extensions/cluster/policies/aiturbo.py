"""AITurbo and Optimus: policies that choose GPUs for jobs by forecasts of their remaining time.

AITurbo serves predictable jobs by a vote of two orders, remaining and attained service, and all others by attained
service alone.
Zhao, Li, Qu, Zhan, Zhang: "AITurbo: Unified Compute Allocation for Partial Predictable Training in Commodity
Clusters", HPDC 2021. CPUs and parameter servers, which the paper shares out as well, are left out.

Optimus serves the shortest remaining time first, and gives GPUs where each saves the most time; jobs without a forecast
come last. Peng, Bao, Chen, Wu, Guo: "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters",
EuroSys 2018.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from ddlprof.base.errors import DdlprofError, UserError
from ddlprof.extensions.cluster.jobs import JobState
from ddlprof.extensions.cluster.machines import Allocation, Cluster, Level, Placement
from ddlprof.extensions.cluster.packing import PriorityAllocator
from ddlprof.extensions.cluster.policies.las import Las, consolidated, held_by
from ddlprof.extensions.cluster.policy import Decision
from ddlprof.extensions.cluster.speeds import Speeds

ROUND_S = 240.0
_SLACK_S = 1e-3


def scores(served: Sequence[str], beneficial: Sequence[str]) -> dict[str, float]:
    """Borda's count, the lowest first: a job's position by attained service plus its position by marginal benefit, or
    twice the former for jobs that are not in the list of the latter.

    A GPU-second brings a job nearer to its end by one part in the GPU-seconds that it still needs, so benefit is the
    order of what remains. That list is shorter where not all jobs are predictable: its positions are stretched over all
    jobs, so that being predictable is by itself neither an advantage nor a drawback.
    """
    stretch = len(served) / len(beneficial) if beneficial else 1.0
    benefit = {job_id: (place + 0.5) * stretch - 0.5 for place, job_id in enumerate(beneficial)}
    return {job_id: place + benefit.get(job_id, place) for place, job_id in enumerate(served)}


class Aiturbo(Las):
    """The queues of `Las`; without a predictable job it is `Las`.

    Once a round, and when a predictable job comes, the numbers of GPUs are chosen anew; in between they stay.
    """

    def __init__(
        self, limit_gpu_h: float = 16.0, queues: float = 2.0, round_s: float = ROUND_S, restart_s: float = 30.0
    ) -> None:
        """`restart_s` is the time that a job loses when its GPUs change. They are changed only if that pays off."""
        super().__init__(limit_gpu_h, queues)
        if not (0 < round_s < math.inf and 0 <= restart_s < math.inf):
            raise UserError("--policy aiturbo: round_s must be more than 0, restart_s 0 or more")
        self.round_s = round_s
        self._restart_s = restart_s
        self._round = -1
        self._since_s: float | None = None
        self._predictable: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._steps_s: dict[tuple[str, int], float] = {}

    def ordered(self, states: Sequence[JobState], times: RemainingTimes) -> list[JobState]:
        """The jobs in order of priority: by the sum of two positions, and by attained service if equal."""
        served = self.in_queues(states, times.now_s)
        known = [state for state in served if times.samples(state) is not None]
        score = scores(
            [state.job.job_id for state in served],
            [state.job.job_id for state in sorted(known, key=times.remaining_gpu_s)],
        )
        return sorted(served, key=lambda state: score[state.job.job_id])

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """Chooses numbers of GPUs if they are due, then gives GPUs in order; a job that keeps its number does not
        move."""
        times = RemainingTimes(cluster, predictor, now_s, self._restart_s, self._steps_s)
        jobs: Sequence[JobState] = running
        given = held_by(running)
        if queue or any(state.job.max_gpus is not None for state in running):
            jobs = self.ordered([*queue, *running], times)
            given = self._given(jobs, running, times)
        return Decision(given, self.next_fall_s(jobs, given, now_s))

    def _given(
        self, jobs: Sequence[JobState], running: Sequence[JobState], times: RemainingTimes
    ) -> dict[str, Allocation]:
        if self._are_sizes_due(jobs, times):
            self._sizes = times.shared_out(jobs)
        allocator = PriorityAllocator(times.cluster, running, jobs, times.now_s)
        wanted = {state.job.job_id: self._allocated(allocator, state, times) for state in jobs}
        return {job_id: allocation for job_id, allocation in wanted.items() if allocation is not None}

    def _size(self, state: JobState, times: RemainingTimes) -> int:
        """The number of GPUs that it should get."""
        if not times.is_elastic(state):
            return state.job.gpus
        return self._sizes.get(state.job.job_id) or times.cheapest(state)

    def _are_sizes_due(self, states: Sequence[JobState], times: RemainingTimes) -> bool:
        self._since_s = times.now_s if self._since_s is None else self._since_s
        this_round = math.floor((times.now_s - self._since_s + _SLACK_S) / (self.round_s or ROUND_S))
        predictable = {state.job.job_id for state in states if times.samples(state) is not None}
        due = this_round > self._round or not predictable <= self._predictable
        self._round, self._predictable = this_round, predictable
        return due

    def _allocated(self, allocator: PriorityAllocator, state: JobState, times: RemainingTimes) -> Allocation | None:
        cluster = times.cluster
        if not times.is_elastic(state):
            return allocator.keep(state) or allocator.allocate(state, consolidated(state.job, cluster))
        size = self._size(state, times)
        if state.allocation is not None and state.allocation.gpus == size:
            kept = allocator.keep(state)
            if kept is not None:
                return kept
        for gpus in sorted({size, min(size, state.job.gpus)}, reverse=True):
            wanted = allocator.allocate(state, cluster.packed(gpus, cluster.gpu_models[0]).level, gpus)
            if wanted is not None:
                return wanted
        return allocator.allocate(state, Level.NETWORK, min(size, times.cheapest(state)))


class Optimus(Aiturbo):
    """Jobs without a forecast, which the paper does not have, are served by attained service with the GPUs left
    over."""

    def ordered(self, states: Sequence[JobState], times: RemainingTimes) -> list[JobState]:
        """The jobs in order of priority."""
        served = self.in_queues(states, times.now_s)
        return sorted(served, key=lambda state: times.remaining_s(state, state.job.gpus))  # infinite: in that order


class RemainingTimes:
    """The remaining times of jobs at one moment by number of GPUs, consolidated and with the batch that each asks for.

    From them follows how many GPUs each job should get: by its marginal gain, the time that one more GPU saves.
    """

    def __init__(
        self,
        cluster: Cluster,
        predictor: Speeds,
        now_s: float,
        restart_s: float,
        known: dict[tuple[str, int], float] | None = None,
    ) -> None:
        """`restart_s` is what a job loses when its GPUs change. `known` caches step times between decisions."""
        self._known = {} if known is None else known
        self._samples: dict[str, float | None] = {}
        self.cluster, self.predictor, self.now_s, self._restart_s = cluster, predictor, now_s, restart_s

    def samples(self, state: JobState) -> float | None:
        """The samples that the job still needs; None: there is no forecast."""
        job_id = state.job.job_id
        if job_id not in self._samples:
            self._samples[job_id] = state.remaining_at(self.now_s)
        return self._samples[job_id]

    def remaining_s(self, state: JobState, gpus: int) -> float:
        """The time until the job ends on so many GPUs; infinite if there is no forecast or it cannot run on them."""
        samples = self.samples(state)
        return math.inf if samples is None else samples / state.job.batch * self._step_s(state, gpus)

    def remaining_gpu_s(self, state: JobState) -> float:
        """The GPU-seconds that it still needs on the GPUs that it asks for."""
        return self.remaining_s(state, state.job.gpus) * state.job.gpus

    def is_elastic(self, state: JobState) -> bool:
        """Whether the number of its GPUs can be chosen; other jobs get what they ask for."""
        return state.job.max_gpus is not None and self.samples(state) is not None

    def cheapest(self, state: JobState) -> int:
        """The number of GPUs, no more than it asks for, on which it needs the fewest GPU-seconds; the largest if
        equal."""
        job = state.job
        sizes = range(job.gpus, min(job.min_gpus, job.gpus) - 1, -1)
        return min(sizes, key=lambda gpus: gpus * self._step_s(state, gpus))

    def shared_out(self, states: Sequence[JobState]) -> dict[str, int]:
        """The number of GPUs of each job, by job_id. In order, jobs get what they ask for or, if elastic, their
        cheapest number; the GPUs left go where each further one saves the most time.
        """
        left, sizes = self.cluster.gpus, {}
        for state in states:
            gpus = self.cheapest(state) if self.is_elastic(state) else state.job.gpus
            if gpus <= left:
                sizes[state.job.job_id] = gpus
                left -= gpus
        growing = {state.job.job_id: state for state in states if state.job.job_id in sizes and self.is_elastic(state)}
        gains = [gain for state in growing.values() if (gain := self._gain(state, sizes, left)) is not None]
        heapq.heapify(gains)
        while gains:
            _, job_id, gpus = heapq.heappop(gains)
            if gpus - sizes[job_id] <= left:
                left -= gpus - sizes[job_id]
                sizes[job_id] = gpus
            gain = self._gain(growing[job_id], sizes, left)
            if gain is not None:
                heapq.heappush(gains, gain)
        return sizes

    def _gain(self, state: JobState, sizes: dict[str, int], left: int) -> tuple[float, str, int] | None:
        """(minus the seconds that each further GPU saves, job_id, GPUs then) for the number of GPUs with the largest
        marginal gain; None: no number saves time."""
        job = state.job
        has = sizes[job.job_id]
        most = min(max(job.max_gpus or job.gpus, job.gpus), has + left)
        gains = [
            ((self._until_end_s(state, gpus) - self._until_end_s(state, has)) / (gpus - has), job.job_id, gpus)
            for gpus in range(has + 1, most + 1)
        ]
        best = min(gains, default=None)
        return best if best is not None and best[0] < 0 else None

    def _until_end_s(self, state: JobState, gpus: int) -> float:
        held = state.allocation.gpus if state.allocation is not None else gpus
        return self.remaining_s(state, gpus) + (self._restart_s if gpus != held else 0.0)

    def _step_s(self, state: JobState, gpus: int) -> float:
        key = state.job.job_id, gpus
        if key not in self._known:
            placements = [self.cluster.packed(gpus, gpu_model) for gpu_model in self.cluster.gpu_models]
            times = [
                self._predicted_s(state, placement)
                for placement in placements
                if placement.gpus == gpus <= state.job.batch
            ]
            self._known[key] = min(times, default=math.inf)
        return self._known[key]

    def _predicted_s(self, state: JobState, placement: Placement) -> float:
        try:
            return self.predictor.step(state.job, placement, state.job.batch).step_s
        except DdlprofError:  # this number of GPUs cannot be predicted, so it is not chosen
            return math.inf
