"""Least attained service (Tiresias): jobs that have had few GPU-seconds go first, in queues with thresholds.

Gu et al.: "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019: discretised two-dimensional LAS,
promotion of starved jobs, and consolidation of the models whose largest tensors make the network the bottleneck.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job, JobState, model_key
from ddlprof.extensions.cluster.machines import Allocation, Cluster, Level
from ddlprof.extensions.cluster.packing import PriorityAllocator
from ddlprof.extensions.cluster.policy import Decision
from ddlprof.extensions.cluster.speeds import Speeds

_EVEN = ("resnet", "inception", "googlenet")
"""Families of models without a tensor much larger than the others, which Tiresias places anywhere: a part of
`model_key`. The word embedding of BERT and its like is ten times as large as any of their other tensors."""
_NEXT_QUEUE = 10.0
_MOST_QUEUES = 100
"""The most queues; no job attains as much service as the last of so many begins with."""
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
        if not (1 <= queues <= _MOST_QUEUES and limit_gpu_h > 0 and promote > 0):
            raise UserError(
                f"--policy las: queues must be from 1 to {_MOST_QUEUES}, limit_gpu_h and promote more than 0"
            )
        self._promote = promote
        self._forgiven_gpu_s: dict[str, float] = {}
        """The service that promoted jobs had attained by then."""
        self._limits = [limit_gpu_h * 3600 * _NEXT_QUEUE**number for number in range(int(queues) - 1)]

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """Gives GPUs in the order of the queues; a job that is not preempted does not move."""
        if not queue:  # nobody wants the GPUs of another
            return Decision(held_by(running), self.next_fall_s(running, held_by(running), now_s))
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
        """The jobs in order of priority: by queue, then by first start, submission and name."""
        # One loop, as it passes every job at every decision.
        limits, forgiven, ordered = self._limits, self._forgiven_gpu_s, []
        for state in states:
            job, first_start_s = state.job, state.first_start_s
            attained = state.held_at(now_s) - forgiven.get(job.job_id, 0.0)
            queue = bisect.bisect_right(limits, attained + _SLACK_GPU_S)
            started_s = math.inf if first_start_s is None else first_start_s
            ordered.append((queue, started_s, job.submit_s, job.job_id, state))
        ordered.sort()  # the name decides before a state would be compared
        return [row[-1] for row in ordered]

    def next_fall_s(self, states: Iterable[JobState], given: Mapping[str, Allocation], now_s: float) -> float | None:
        """The time at which the first of the jobs with these allocations falls to the next queue; None: none does."""
        limits, forgiven, first_s = self._limits, self._forgiven_gpu_s, math.inf
        for state in states:
            allocation = given.get(state.job.job_id)
            if allocation is not None:
                attained = state.held_at(now_s) - forgiven.get(state.job.job_id, 0.0)
                queue = bisect.bisect_right(limits, attained + _SLACK_GPU_S)
                if queue < len(limits):
                    first_s = min(first_s, now_s + (limits[queue] - attained) / allocation.gpus)
        return first_s if first_s < math.inf else None

    def _place(self, state: JobState, now_s: float) -> int:
        """The number of its queue, from 0."""
        return bisect.bisect_right(self._limits, self._attained(state, now_s) + _SLACK_GPU_S)

    def _attained(self, state: JobState, now_s: float) -> float:
        """The attained service since its last promotion."""
        return state.held_at(now_s) - self._forgiven_gpu_s.get(state.job.job_id, 0.0)

    def _promoted(self, queue: Sequence[JobState], now_s: float) -> float | None:
        """Promotes jobs that have waited too long. Returns when the next is due, if none of them got GPUs before."""
        if self._promote == math.inf:
            return None
        next_s = []
        for state in queue:
            if self._place(state, now_s):
                due_s = state.changed_s + self._promote * self._attained(state, now_s) / state.job.gpus
                if due_s <= now_s:
                    self._forgiven_gpu_s[state.job.job_id] = state.held_at(now_s)
                else:
                    next_s.append(due_s)
        return min(next_s, default=None)


def held_by(running: Iterable[JobState]) -> dict[str, Allocation]:
    """What jobs hold, by job_id."""
    return {state.job.job_id: state.allocation for state in running if state.allocation is not None}


def consolidated(job: Job, cluster: Cluster) -> Level:
    """How far apart a job's GPUs may be. Models with large tensors need consolidated GPUs, and so do unknown models."""
    if job.model is not None and any(family in model_key(job.model) for family in _EVEN):
        return Level.NETWORK
    if job.gpus <= cluster.most_per_machine:
        return Level.MACHINE
    return Level.RACK if job.gpus <= cluster.most_per_rack else Level.NETWORK
