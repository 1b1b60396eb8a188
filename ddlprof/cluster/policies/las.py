"""Least attained service (Tiresias): who has had few GPU-seconds goes first, in queues with thresholds.

Gu et al.: "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019: discretised two-dimensional LAS,
and consolidation of the models whose largest tensors make the network the bottleneck.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence

from ddlprof.cluster.jobs import Job, JobState, model_key
from ddlprof.cluster.machines import Allocation, Cluster, Level
from ddlprof.cluster.offers import Offers
from ddlprof.cluster.policy import Decision
from ddlprof.cluster.speeds import Speeds
from ddlprof.model.errors import UserError

_EVEN = frozenset({"resnet18", "resnet50", "bert"})
"""Models without a tensor much larger than the others, which Tiresias places anywhere, by `model_key`."""
_NEXT_QUEUE = 10.0
_SLACK_GPU_S = 1e-3


class Las:
    """Jobs fall from queue to queue with the service they attain; in a queue, who started first goes first."""

    lease_s = 0.0
    round_s: float | None = None

    def __init__(self, limit_gpu_h: float = 16.0, queues: float = 2.0) -> None:
        """`limit_gpu_h` is where the first of the queues ends, each other one at ten times that before."""
        if queues < 1 or limit_gpu_h <= 0:
            raise UserError("--policy las: queues must be 1 or more, limit_gpu_h more than 0")
        self._limits = [limit_gpu_h * 3600 * _NEXT_QUEUE**number for number in range(int(queues) - 1)]

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """Gives GPUs in the order of the queues; nobody moves who is not preempted."""
        bidders = self.in_queues([*queue, *running], now_s)
        offers = Offers(cluster, running, bidders, now_s)
        given = {}
        for state in bidders:
            wanted = offers.keep(state) or offers.bid(state, consolidated(state.job, cluster))
            if wanted is not None:
                given[state.job.job_id] = wanted
        return Decision(given, self.next_fall_s(bidders, given, now_s))

    def in_queues(self, states: Iterable[JobState], now_s: float) -> list[JobState]:
        """In the order in which they are served."""
        return sorted(states, key=lambda state: self._order(state, now_s))

    def next_fall_s(self, states: Iterable[JobState], given: Mapping[str, Allocation], now_s: float) -> float | None:
        """When the first of those that run with these allocations falls to the next queue; None: none does."""
        falls = [
            now_s + (limit - state.held_at(now_s)) / given[state.job.job_id].gpus
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
        return bisect.bisect_right(self._limits, state.held_at(now_s) + _SLACK_GPU_S)


def consolidated(job: Job, cluster: Cluster) -> Level:
    """How far apart its GPUs may be: no further than they must, for models that need it; whoever is unknown does."""
    if job.model is not None and model_key(job.model) in _EVEN:
        return Level.NETWORK
    if job.gpus <= cluster.most_per_machine:
        return Level.MACHINE
    return Level.RACK if job.gpus <= cluster.most_per_rack else Level.NETWORK
