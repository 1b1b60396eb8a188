"""Least attained service (Tiresias): jobs that have had few GPU-seconds go first, in queues with thresholds.

Gu et al.: "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019: discretised two-dimensional LAS,
promotion of starved jobs, and consolidation of the models whose largest tensors make the network the bottleneck.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence

from ddlprof.base.errors import UserError
from ddlprof.cluster.jobs import Job, JobState, model_key
from ddlprof.cluster.machines import Allocation, Cluster, Level
from ddlprof.cluster.packing import PriorityAllocator
from ddlprof.cluster.policy import Decision
from ddlprof.cluster.speeds import Speeds

_EVEN = ("resnet", "inception", "googlenet")
"""Families of models without a tensor much larger than the others, which Tiresias places anywhere: a part of
`model_key`. The word embedding of BERT and its like is ten times as large as any of their other tensors."""
_NEXT_QUEUE = 10.0
_SLACK_GPU_S = 1e-3


class Las:
    """Jobs fall from queue to queue with the service they attain; within a queue, the job that started first goes
    first."""

    lease_s = 0.0
    round_s: float | None = None

    def __init__(self, limit_gpu_h: float = 16.0, queues: float = 2.0, promote: float = math.inf) -> None:
        """`limit_gpu_h` is the attained service at which the first queue ends; each further one ends at ten times that.

        `promote` is the PROMOTEKNOB of Tiresias: a job that waits so many times as long as it ran starts anew in the
        first queue; infinity: none does.
        """
        if queues < 1 or limit_gpu_h <= 0 or not promote > 0:
            raise UserError("--policy las: queues must be 1 or more, limit_gpu_h and promote more than 0")
        self._promote = promote
        self._forgiven_gpu_s: dict[str, float] = {}
        """The service that promoted jobs had attained by then."""
        self._limits = [limit_gpu_h * 3600 * _NEXT_QUEUE**number for number in range(int(queues) - 1)]

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """Gives GPUs in the order of the queues; a job that is not preempted does not move."""
        next_promotion_s = self._promoted(queue, now_s)
        jobs = self.in_queues([*queue, *running], now_s)
        allocator = PriorityAllocator(cluster, running, jobs, now_s)
        given: dict[str, Allocation] = {}
        for state in jobs:
            wanted = allocator.keep(state) or allocator.allocate(state, consolidated(state.job, cluster))
            if wanted is not None:
                given[state.job.job_id] = wanted
        wakes = (self.next_fall_s(jobs, given, now_s), next_promotion_s)
        return Decision(given, min((wake for wake in wakes if wake is not None), default=None))

    def in_queues(self, states: Iterable[JobState], now_s: float) -> list[JobState]:
        """The jobs in order of priority."""
        return sorted(states, key=lambda state: self._order(state, now_s))

    def next_fall_s(self, states: Iterable[JobState], given: Mapping[str, Allocation], now_s: float) -> float | None:
        """The time at which the first of the jobs with these allocations falls to the next queue; None: none does."""
        falls = [
            now_s + (limit - self._attained(state, now_s)) / given[state.job.job_id].gpus
            for state in states
            if state.job.job_id in given
            for limit in self._limits[self._place(state, now_s) :][:1]
        ]
        return min(falls, default=None)

    def _order(self, state: JobState, now_s: float) -> tuple[int, float, float, str]:
        first_start_s = math.inf if state.first_start_s is None else state.first_start_s
        return self._place(state, now_s), first_start_s, state.job.submit_s, state.job.job_id

    def _place(self, state: JobState, now_s: float) -> int:
        """The number of its queue, from 0."""
        return bisect.bisect_right(self._limits, self._attained(state, now_s) + _SLACK_GPU_S)

    def _attained(self, state: JobState, now_s: float) -> float:
        """The attained service since its last promotion."""
        return state.held_at(now_s) - self._forgiven_gpu_s.get(state.job.job_id, 0.0)

    def _promoted(self, queue: Sequence[JobState], now_s: float) -> float | None:
        """Promotes jobs that have waited too long. Returns when the next is due, if none of them got GPUs before."""
        next_s = []
        for state in queue:
            if self._place(state, now_s) and self._promote < math.inf:
                due_s = state.changed_s + self._promote * self._attained(state, now_s) / state.job.gpus
                if due_s <= now_s:
                    self._forgiven_gpu_s[state.job.job_id] = state.held_at(now_s)
                else:
                    next_s.append(due_s)
        return min(next_s, default=None)


def consolidated(job: Job, cluster: Cluster) -> Level:
    """How far apart a job's GPUs may be. Models with large tensors need consolidated GPUs, and so do unknown models."""
    if job.model is not None and any(family in model_key(job.model) for family in _EVEN):
        return Level.NETWORK
    if job.gpus <= cluster.most_per_machine:
        return Level.MACHINE
    return Level.RACK if job.gpus <= cluster.most_per_rack else Level.NETWORK
