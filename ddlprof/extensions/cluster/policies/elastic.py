"""Elastic scaling: the GPUs and the batch of every job are chosen anew each round; and three with fixed batches.

Saxena, Jayaram, Basu, Sabharwal, Verma: Effective Elastic Scaling of Deep Learning Workloads, MASCOTS 2020. Any batch
between the bounds of a job is taken to train it as well, sample for sample, unless the speeds charge for it
(`ddlprof.extensions.cluster.elastic.scaling`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.elastic.scaling import Choices, all_batches, share_out
from ddlprof.extensions.cluster.jobs import Job, JobState
from ddlprof.extensions.cluster.machines import Allocation, Cluster
from ddlprof.extensions.cluster.packing import FreeGpus
from ddlprof.extensions.cluster.policy import Decision
from ddlprof.extensions.cluster.speeds import Speeds


class Elastic:
    """Divides all GPUs anew each round; in between, waiting jobs share the free GPUs and none is preempted."""

    lease_s = 0.0

    def __init__(self, round_s: float = 600.0, restart_s: float = 30.0, accumulate: float = 0) -> None:
        """`restart_s` is the time of a round that a job loses when its GPUs change. They are changed only if that pays
        off. `accumulate` allows batches that take several passes to fit the memory; fixed batches always may."""
        if not (round_s > restart_s >= 0 and math.isfinite(round_s)):
            raise UserError(f"a round takes longer than a restart: not round_s={round_s:g} and restart_s={restart_s:g}")
        self.round_s = round_s
        self._kept_share = 1 - restart_s / round_s
        self._accumulate = bool(accumulate)
        self._choices: Choices | None = None
        self._begin_s, self._round = 0.0, 0

    def batches(self, job: Job, gpus: int) -> Sequence[int]:
        """The batches of which the fastest is chosen."""
        return all_batches(job, gpus, self._accumulate)

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """Raises `UserError` for a cluster of several GPU models: the paper's factors are those of one."""
        if self._choices is None:
            if len(cluster.gpu_models) > 1:
                raise UserError("elastic policies share out GPUs of one model, and the cluster has several")
            self._choices = Choices(cluster, predictor, self.batches)
            self._begin_s = now_s
        held = {state.job.job_id: state.allocation for state in running if state.allocation is not None}
        this_round = math.floor((now_s - self._begin_s) / self.round_s + 1e-9)
        states: Sequence[JobState] = queue
        if this_round > self._round:
            self._round = this_round
            self._choices.forget({state.job.job_id for state in (*queue, *running)})
            states = sorted((*running, *queue), key=lambda state: state.job.submit_s)
        return Decision(self._allocations(states, held, cluster, self._choices))

    def _allocations(
        self, states: Sequence[JobState], held: dict[str, Allocation], cluster: Cluster, choices: Choices
    ) -> dict[str, Allocation]:
        """The allocations of `states`, and of all other jobs, which go on. A job that keeps its number of GPUs stays as
        it is; the others get the batch that is best for their placement."""
        given = dict(held)
        for state in states:
            given.pop(state.job.job_id, None)
        free = FreeGpus(cluster, given.values())
        jobs = [state.job for state in states]
        factors = choices.factors(jobs)
        for row, job in zip(factors, jobs, strict=True):
            unchanged = held[job.job_id].gpus - 1 if job.job_id in held else None
            row[np.arange(len(row)) != unchanged] *= self._kept_share
        moving = []
        for job, gpus in zip(jobs, share_out(factors, free.total), strict=True):
            before = held.get(job.job_id)
            if before is not None and before.gpus == gpus:
                free.take(before)
                given[job.job_id] = before
            elif gpus:
                moving.append((gpus, job))
        for gpus, job in sorted(moving, key=lambda move: -move[0]):
            allocation = free.place(gpus)
            choice = choices.best_on(job, cluster.placement(allocation)) if allocation is not None else None
            if allocation is not None and choice is not None:
                free.take(allocation)
                given[job.job_id] = replace(allocation, batch=choice.batch)
        return given


class FixedMin(Elastic):
    """GPUs as in `Elastic`, and always the smallest batch."""

    def batches(self, job: Job, gpus: int) -> Sequence[int]:
        """The smallest batch, if the job can have it on so many GPUs."""
        return _if_enough(job, job.min_batch, gpus)


class FixedMax(Elastic):
    """GPUs as in `Elastic`, and always the largest batch."""

    def batches(self, job: Job, gpus: int) -> Sequence[int]:
        """The largest batch, if the job can have it on so many GPUs."""
        return _if_enough(job, job.max_batch, gpus)


class FixedRandom(Elastic):
    """GPUs as in `Elastic`, and a batch drawn once for every job, uniformly in its logarithm."""

    def __init__(self, round_s: float = 600.0, restart_s: float = 30.0, seed: float = 0) -> None:
        super().__init__(round_s, restart_s)
        self._seed = int(seed)

    def batches(self, job: Job, gpus: int) -> Sequence[int]:
        """The drawn batch, which is the same for the same seed and job."""
        if job.min_batch is None or job.max_batch is None:
            return _if_enough(job, None, gpus)
        drawn = random.Random(f"{self._seed} {job.job_id}").uniform(math.log(job.min_batch), math.log(job.max_batch))
        return _if_enough(job, round(math.exp(drawn)), gpus)


def _if_enough(job: Job, batch: int | None, gpus: int) -> list[int]:
    """The batch, if every GPU, or copy of the model, gets a sample of it; the batch asked for, if there is no bound."""
    copies, rest = divmod(gpus, job.copy_gpus)
    if rest or not copies:
        return []
    return [batch] if batch is not None and batch >= copies else [job.batch] if batch is None else []
