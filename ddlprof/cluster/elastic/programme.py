"""The dynamic programme that shares out GPUs: the most of the sum of the jobs' scaling factors.

Saxena, Jayaram, Basu, Sabharwal, Verma: Effective Elastic Scaling of Deep Learning Workloads, MASCOTS 2020.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def share_out(factors: NDArray[np.float64], gpus: int) -> list[int]:
    """GPUs for each job, so that the sum of their factors is as large as can be.

    `factors[j, g - 1]` is how much faster job j is on g GPUs than on one, -inf where it cannot run on g; the jobs are
    in the order of their submission. Every job gets GPUs if all can have the fewest that they run on; else the first
    ones that can, as in a queue that nobody passes. A job that runs on no number at all gets 0 and holds up nobody.
    O(jobs x gpus x most GPUs of a job).
    """
    counts = [0] * len(factors)
    able = np.flatnonzero(np.isfinite(factors).any(axis=1)) if factors.size else np.array([], dtype=int)
    fewest = np.isfinite(factors[able]).argmax(axis=1) + 1 if len(able) else able
    chosen = able[np.cumsum(fewest) <= gpus]
    factors = factors[:, :gpus]
    most = factors.shape[1]
    # best[n]: the largest sum of the jobs so far on n GPUs or fewer, as unused ones cost nothing before the first job.
    # In front of it as many places as a job may have GPUs, so that too many are as impossible as any other.
    best = np.concatenate([np.full(most, -np.inf), np.zeros(gpus + 1)])
    windows = np.arange(gpus + 1)[:, None] + most - np.arange(1, most + 1)
    taken = []
    for job in chosen:
        sums = best[windows] + factors[job]
        taken.append(sums.argmax(axis=1) + 1)
        best[most:] = sums.max(axis=1)
    left = gpus
    for job, of_job in zip(chosen[::-1], taken[::-1], strict=True):
        counts[job] = int(of_job[left])
        left -= counts[job]
    return counts
