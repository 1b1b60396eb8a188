"""Shortest remaining time first, with preemption."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddlprof.extensions.cluster.jobs import Job, JobState
from ddlprof.extensions.cluster.machines import Allocation, Cluster
from ddlprof.extensions.cluster.packing import FreeGpus
from ddlprof.extensions.cluster.policy import Decision
from ddlprof.extensions.cluster.speeds import Speeds

_DIGITS = 6
"""Remaining times are equal that differ by less than a microsecond: the rest is rounding."""


class Srtf:
    """The bound with perfect forecasts: hardly any policy has lower mean completion times if all placements are as
    fast.

    A job's remaining time is a forecast, at the speed at which it runs or, while it waits, on the GPUs it asks for,
    consolidated. Jobs without a forecast come last, in the order of submission. Others overtake a job that does not
    fit. Running jobs keep their machines. Of jobs with equal times, the one that was submitted first goes first.
    """

    lease_s = 0.0
    round_s = None

    def __init__(self) -> None:
        self._waiting_s: dict[str, float] = {}
        """The remaining time of waiting jobs: it does not change until they run."""
        self._numbers: dict[str, int] = {}
        """The place of each job in the order of submission, or of the trace if several jobs are submitted at once."""
        self._best: dict[str, tuple[float, list[str | None]]] = {}

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """Chooses the jobs that run by their remaining times, then places those that start, the largest first."""
        waiting, numbers = self._waiting_s, self._numbers
        order = [
            (_runs_s(state, now_s), numbers.setdefault(state.job.job_id, len(numbers)), state) for state in running
        ]
        for state in queue:
            job = state.job
            if job.job_id not in waiting:
                waiting[job.job_id] = self._waits_s(state, now_s, cluster, predictor)
            order.append((waiting[job.job_id], numbers.setdefault(job.job_id, len(numbers)), state))
        order.sort()  # the number decides before a state would be compared
        left = dict(cluster.gpus_by_model)
        total = cluster.gpus
        staying: dict[str, Allocation] = {}
        starting: list[tuple[Job, str | None]] = []
        for _, _, state in order:
            if not total:
                break
            job, held = state.job, state.allocation
            if held is not None:
                models: Sequence[str | None] = (cluster.machines[held.parts[0][0]].gpu_model,)
                gpus = held.gpus
            else:
                models, gpus = self._best[job.job_id][1], job.gpus
            for gpu_model in models:
                if gpus <= left[gpu_model]:
                    left[gpu_model] -= gpus
                    total -= gpus
                    if held is not None:
                        staying[job.job_id] = held
                    else:
                        starting.append((job, gpu_model))
                    break
        return Decision(self._placed(staying, starting, cluster))

    def _placed(
        self, staying: dict[str, Allocation], starting: list[tuple[Job, str | None]], cluster: Cluster
    ) -> dict[str, Allocation]:
        given = dict(staying)
        if not starting:
            return given
        free = FreeGpus(cluster, staying.values())
        for job, gpu_model in sorted(starting, key=lambda item: -item[0].gpus):
            allocation = free.place(job.gpus, gpu_models=[gpu_model])
            if allocation is not None:
                free.take(allocation)
                given[job.job_id] = allocation
                del self._waiting_s[job.job_id]
        return given

    def _waits_s(self, state: JobState, now_s: float, cluster: Cluster, predictor: Speeds) -> float:
        samples = state.remaining_at(now_s)
        step_s = self._best_step_s(state.job, cluster, predictor)
        return math.inf if samples is None else round(samples / state.job.batch * step_s, _DIGITS)

    def _best_step_s(self, job: Job, cluster: Cluster, predictor: Speeds) -> float:
        """The step on the fastest GPU model; keeps the models in the order of their speed."""
        if job.job_id not in self._best:
            placements = {model: cluster.packed(job.gpus, model) for model in cluster.gpu_models}
            steps = {
                model: predictor.step(job, placement, job.batch).step_s
                for model, placement in placements.items()
                if placement.gpus == job.gpus
            }
            self._best[job.job_id] = min(steps.values()), sorted(steps, key=lambda model: steps[model])
        return self._best[job.job_id][0]


def _runs_s(state: JobState, now_s: float) -> float:
    samples = state.remaining_at(now_s)
    if samples is None:
        return math.inf
    return round(max(state.works_from_s - now_s, 0.0) + samples / state.samples_per_s, _DIGITS)
