"""When jobs are submitted, where that is drawn instead of taken from the trace."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from ddlprof.cluster.jobs import Job

_GAP_S = 1.0
"""The mean gap where the trace submits all jobs at once; the load then sets it."""


def poisson(jobs: Sequence[Job], seed: int) -> list[Job]:
    """The same jobs in a random order, with gaps from an exponential distribution whose mean is that of the trace."""
    drawn = random.Random(f"arrivals/{seed}")  # the same in every process and version
    first_s, last_s = min(job.submit_s for job in jobs), max(job.submit_s for job in jobs)
    mean_s = (last_s - first_s) / (len(jobs) - 1) if last_s > first_s else _GAP_S
    order = list(jobs)
    drawn.shuffle(order)
    now_s, submitted = 0.0, []
    for job in order:
        submitted.append(replace(job, submit_s=now_s))
        now_s += drawn.expovariate(1 / mean_s)
    return submitted
