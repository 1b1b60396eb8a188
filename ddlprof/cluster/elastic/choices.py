"""The best batch of a job for each number of GPUs, and how much faster each number is than one GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlprof.cluster.jobs import Job
from ddlprof.cluster.machines import Cluster, Spread
from ddlprof.cluster.speeds import Speeds

_RATIO = 1.15
"""Between one batch that is tried and the next: near its best, the speed hardly depends on the batch."""

Batches = Callable[[Job, int], Sequence[int]]
"""The batches, in samples over all GPUs, that a job may choose from on so many GPUs; none: it does not run on them."""


class Choice(NamedTuple):
    """A batch and what comes of it."""

    batch: int
    samples_per_s: float


def all_batches(job: Job, gpus: int, accumulate: bool = False) -> list[int]:
    """Batches between the job's bounds that divide evenly by the GPUs, each a little larger than the one before, and
    that fit the memory; those that take several passes if none fits or if it may `accumulate`. One that does not
    divide if none does, and where a job has no bounds, what it asked for."""
    if job.min_batch is None and job.max_batch is None:
        return [job.batch]
    least, most = job.min_batch or job.batch, job.max_batch or job.batch
    first, last = max(math.ceil(least / gpus), 1), most // gpus
    if last < first:
        return [most] if most >= gpus else []
    fits = last if accumulate else job.max_batch_per_gpu or last
    if fits >= first:
        last = min(last, fits)
    tried = math.ceil(math.log(last / first, _RATIO)) + 1
    return [gpus * share for share in sorted({round(share) for share in np.geomspace(first, last, tried)})]


class Choices:
    """The choices of jobs on a cluster with GPUs of one model, remembered: speeds do not change while it runs."""

    def __init__(self, cluster: Cluster, speeds: Speeds, batches: Batches = all_batches) -> None:
        self._cluster = cluster
        self._speeds = speeds
        self._batches = batches
        self._known: dict[str, list[Choice | None]] = {}
        self._spreads: list[Spread] = []

    def of(self, job: Job) -> list[Choice | None]:
        """The best choice on 1, 2, ... GPUs as close together as they can be; None where it does not run."""
        if job.job_id not in self._known:
            most = min(job.most_gpus, self._cluster.gpus)
            found = [
                self.best_on(job, self._packed(gpus)) if gpus >= job.fewest_gpus else None
                for gpus in range(1, most + 1)
            ]
            self._known[job.job_id] = found
        return self._known[job.job_id]

    def factors(self, jobs: Sequence[Job]) -> NDArray[np.float64]:
        """How much faster each job is on 1, 2, ... GPUs than on one, -inf where it does not run: what `share_out`
        takes. One that needs several GPUs is taken to be as fast on one as a part of them."""
        choices = [self.of(job) for job in jobs]
        found = np.full((len(jobs), max(map(len, choices), default=0)), -np.inf)
        for row, of_job in zip(found, choices, strict=True):
            reference = next((each.samples_per_s / gpus for gpus, each in enumerate(of_job, 1) if each), None)
            for column, choice in enumerate(of_job):
                if choice is not None and reference:
                    row[column] = choice.samples_per_s / reference
        return found

    def forget(self, job_ids: set[str]) -> None:
        """Forgets all jobs but these."""
        self._known = {job_id: found for job_id, found in self._known.items() if job_id in job_ids}

    def best_on(self, job: Job, spread: Spread) -> Choice | None:
        """The best batch on GPUs that may be further apart; None where it does not run on so many."""
        speeds = self._speeds
        tried = [
            Choice(batch, batch / speeds.step(job, spread, batch).step_s) for batch in self._batches(job, spread.gpus)
        ]
        return max(tried, key=lambda choice: choice.samples_per_s, default=None)

    def _packed(self, gpus: int) -> Spread:
        for each in range(len(self._spreads) + 1, gpus + 1):
            self._spreads.append(self._cluster.packed(each, self._cluster.gpu_models[0]))
        return self._spreads[gpus - 1]
