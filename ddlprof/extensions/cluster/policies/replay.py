"""What becomes of the jobs that are there under AITurbo's order, if nobody else comes, by numbers of GPUs alone."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

_DONE_S = 1e-6


class Needs(NamedTuple):
    """What a job still needs, in seconds, on GPUs and on CPU nodes."""

    job_id: str
    gpus: int
    gpu_s: float
    """The work on these GPUs."""
    gpu_restart_s: float = 0.0
    """What it loses before, if it gets GPUs now; 0 for a job that has them or has never started."""
    cpu_s: Sequence[float] = ()
    """The work on 1, 2, ... CPU nodes; empty: it needs GPUs, or nothing is known of its length."""
    cpu_restart_s: float = 0.0
    served: int = 0
    """Its place in the order by attained service."""
    anew_s: float = math.inf
    """What it needs on GPUs if it begins anew there, without a restart; infinite if it has had GPUs before."""
    is_known: bool = True
    """Whether there is a forecast of its length."""


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


class _Replayed:
    """A job of the replay, which changes."""

    def __init__(self, job: Needs, nodes: int) -> None:
        self.job = job
        self.gpu_s, self.restart_s = job.gpu_s, job.gpu_restart_s
        self.has_gpus = False
        self.service = (job.anew_s < math.inf, job.served)
        """Its place by attained service: those that had GPUs first, in the order in which they got them."""
        self.nodes = nodes
        self.cpu_restart_s = job.cpu_restart_s
        self.cpu_s = job.cpu_s[nodes - 1] if nodes else 0.0
        self._saved = job.gpu_s / self.cpu_s if self.cpu_s else 0.0
        """The seconds on GPUs that a second on CPU nodes saves."""

    @property
    def left_s(self) -> float:
        """The seconds until it ends on what it has."""
        return self.cpu_restart_s + self.cpu_s if self.nodes else self.restart_s + self.gpu_s

    def advance(self, seconds: float) -> None:
        """It has what it has for so long."""
        if self.nodes:
            lost_s = min(self.cpu_restart_s, seconds)
            self.cpu_restart_s -= lost_s
            self.cpu_s -= seconds - lost_s
            self.gpu_s -= (seconds - lost_s) * self._saved
        else:
            lost_s = min(self.restart_s, seconds)
            self.restart_s -= lost_s
            self.gpu_s -= seconds - lost_s


def total_completion_s(
    jobs: Sequence[Needs], on_cpus: Mapping[str, int], staying: Container[str], gpus: int, restart_s: float
) -> float:
    """The sum of the seconds until each job ends, with so many CPU nodes for some of them.

    Whenever a job ends, the GPUs go to the jobs in the order of `scores`, and who does not fit is passed by. A job on
    CPU nodes goes on to GPUs when its turn comes and it ends sooner there, unless it is one of `staying`.
    """
    there = {job.job_id: _Replayed(job, on_cpus.get(job.job_id, 0) if job.cpu_s else 0) for job in jobs}
    now_s, total_s, began = 0.0, 0.0, len(jobs)
    while there:
        left = gpus
        for each in _in_order(there):
            had, each.has_gpus = each.has_gpus, False
            there_s = min(restart_s + each.gpu_s, each.job.anew_s)
            may_go = not each.nodes or (there_s < each.left_s and each.job.job_id not in staying)
            if each.job.gpus <= left and may_go:
                left -= each.job.gpus
                each.has_gpus = True
                if each.nodes:
                    each.nodes, each.restart_s, each.gpu_s = 0, 0.0, there_s
                if each.service[0]:
                    each.service, began = (False, began), began + 1
            elif had:
                each.restart_s = restart_s
        active = [each for each in there.values() if each.nodes or each.has_gpus]
        passed_s = min(each.left_s for each in active)
        now_s += passed_s
        for each in active:
            each.advance(passed_s)
            if each.left_s <= _DONE_S:
                del there[each.job.job_id]
                total_s += now_s
    return total_s


def _in_order(there: Mapping[str, _Replayed]) -> list[_Replayed]:
    served = sorted(there.values(), key=lambda each: each.service)
    known = sorted((each for each in served if each.job.is_known), key=lambda each: each.gpu_s * each.job.gpus)
    score = scores([each.job.job_id for each in served], [each.job.job_id for each in known])
    return sorted(served, key=lambda each: score[each.job.job_id])
