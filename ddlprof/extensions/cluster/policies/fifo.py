"""First in, first out: the oldest job runs as soon as it fits, and no other job overtakes it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddlprof.extensions.cluster.jobs import JobState
from ddlprof.extensions.cluster.machines import Cluster
from ddlprof.extensions.cluster.packing import unprotected
from ddlprof.extensions.cluster.policy import Decision
from ddlprof.extensions.cluster.speeds import Speeds


class Fifo:
    """Jobs run to their end, without preemption, on the closest GPUs that are free when their turn comes."""

    lease_s = math.inf
    round_s = None

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """Starts jobs in the order of their submission."""
        free = unprotected(cluster, running, now_s)
        given = {}
        for state in queue:
            allocation = free.place(state.job.gpus)
            if allocation is None:
                break
            free.take(allocation)
            given[state.job.job_id] = allocation
        return Decision(given)
