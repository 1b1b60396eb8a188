"""Which jobs are worth more on CPU nodes than on GPUs, for AITurbo.

A job may end later on CPU nodes than on GPUs, and leaves these to the jobs behind it. Both are seconds of completion:
their sum says what CPU nodes are worth for it now (`worth_s`), if jobs get GPUs one after the other. A job gets CPU
nodes only if a replay of all jobs that are there says so, too (`replay.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Container, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ddlprof.extensions.cluster.policies.replay import Needs, total_completion_s

_TRIES = 4
_REPLAYED = 64
"""The most jobs that are replayed. Among more of them one more or less hardly changes when the others run, and a replay
takes long."""
_ROUNDING = 1e-9


def next_for_cpus(
    jobs: Sequence[Needs],
    gpus: int,
    running: Container[str],
    on_cpus: Mapping[str, int],
    staying: Collection[str],
    free_nodes: int,
    restart_s: float,
) -> tuple[str, int, bool] | None:
    """The job that gains most for each free CPU node, its number of nodes, and whether it should leave the GPUs to
    others until it ends; None: no job gains.

    `jobs` are in order of priority, `running` those that have GPUs or get them now, `on_cpus` the nodes of those that
    have some, `staying` those of them that leave the GPUs to others; `restart_s` is what a job loses that goes on from
    CPU nodes to GPUs.
    """
    left = [job for job in jobs if job.job_id not in on_cpus]
    starts = np.array(projected_starts_s(left, gpus, running))
    found: list[tuple[float, str, int]] = []
    for place, job in enumerate(left):
        behind = starts[place + 1 :]
        for nodes in range(1, min(len(job.cpu_s), free_nodes) + 1):
            worth = worth_s(job, nodes, float(starts[place]), behind[behind > 0], gpus, restart_s) / nodes
            if worth > 0:
                found.append((-worth, job.job_id, nodes))
    if not found or len(jobs) > _REPLAYED:
        return (*min(found)[1:], False) if found else None
    least_s = (1 - _ROUNDING) * total_completion_s(jobs, on_cpus, staying, gpus, restart_s)
    for _, job_id, nodes in sorted(found)[:_TRIES]:
        then = {**on_cpus, job_id: nodes}
        goes_on_s = total_completion_s(jobs, then, staying, gpus, restart_s)
        stays_s = total_completion_s(jobs, then, {job_id, *staying}, gpus, restart_s)
        if min(goes_on_s, stays_s) < least_s:
            return job_id, nodes, stays_s < (1 - _ROUNDING) * goes_on_s
    return None


def projected_starts_s(jobs: Sequence[Needs], gpus: int, running: Container[str]) -> list[float]:
    """The seconds until each job gets its GPUs, if those of `running` have theirs and the others follow in order."""
    free = [0.0] * gpus
    starts = [0.0] * len(jobs)
    for is_running in (True, False):
        for place, job in enumerate(jobs):
            if (job.job_id in running) is is_running and job.gpus <= gpus:
                starts[place] = free[job.gpus - 1]
                end_s = starts[place] + job.gpu_restart_s + job.gpu_s
                del free[: job.gpus]
                at = bisect_left(free, end_s)
                free[at:at] = [end_s] * job.gpus
    return starts


def worth_s(job: Needs, nodes: int, wait_s: float, behind_s: NDArray[np.float64], gpus: int, restart_s: float) -> float:
    """The seconds by which all jobs together end earlier if this one goes to so many CPU nodes now.

    `wait_s`: until it would get GPUs; `behind_s`: the same of the jobs that wait behind it, each of which starts sooner
    by the GPU time that is left to it over all GPUs, but not before now. It stays on CPU nodes to its end, or goes on
    to GPUs when its turn comes.
    """
    on_gpus_s = job.gpu_restart_s + job.gpu_s
    cpu_s = job.cpu_restart_s + job.cpu_s[nodes - 1]

    def gain_s(end_s: float, left_s: float) -> float:
        """If it ends at `end_s` and needs its GPUs for `left_s`."""
        sooner_s = job.gpus * (on_gpus_s - left_s) / gpus
        return wait_s + on_gpus_s - end_s + float(np.minimum(behind_s, sooner_s).sum())

    to_the_end = gain_s(cpu_s, 0.0)
    saved_s = job.gpu_s * (wait_s - job.cpu_restart_s) / job.cpu_s[nodes - 1]
    if wait_s >= cpu_s or saved_s <= 0:
        return to_the_end
    left_s = min(restart_s + job.gpu_s - saved_s, job.anew_s)
    return max(to_the_end, gain_s(wait_s + left_s, left_s))
