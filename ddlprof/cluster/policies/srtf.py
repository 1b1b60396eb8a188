"""Shortest remaining time first, with preemption: whoever is done soonest runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddlprof.cluster.jobs import Job, JobState
from ddlprof.cluster.machines import Allocation, Cluster
from ddlprof.cluster.packing import FreeGpus
from ddlprof.cluster.policy import Decision
from ddlprof.cluster.speeds import Speeds


class Srtf:
    """What can be had with foresight: hardly any policy has lower mean completion times if all placements are as fast.

    A job's remaining time is what it seems to need at the speed at which it runs, or, while it waits, on the GPUs it
    asks for as close together as they can be. Jobs of which nobody can tell come last, in the order of submission. A
    job that does not fit is passed. Running jobs keep their machines.
    """

    lease_s = 0.0
    round_s = None

    def __init__(self) -> None:
        self._waiting_s: dict[tuple[str, int], float] = {}
        """The remaining time of a job since it was stopped: by its job_id and how often it had been started."""
        self._best: dict[str, tuple[float, list[str | None]]] = {}

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """Chooses who runs by the remaining time, then places those who do not run yet, the largest first."""
        order = [(self._runs_s(state, now_s), place, state) for place, state in enumerate(running)]
        order += [(self._waits_s(state, now_s, cluster, predictor), place, state) for place, state in enumerate(queue)]
        order.sort(key=lambda item: (item[0], item[2].job.submit_s, item[1]))
        left = dict.fromkeys(cluster.gpu_models, 0)
        for machine in cluster.machines:
            left[machine.gpu_model] += machine.gpus
        free = FreeGpus(cluster)
        given: dict[str, Allocation] = {}
        starting: list[tuple[Job, str | None]] = []
        for _, _, state in order:
            held = state.allocation
            if held is not None:
                gpu_model = cluster.machines[held.parts[0][0]].gpu_model
                if held.gpus <= left[gpu_model]:
                    left[gpu_model] -= held.gpus
                    free.take(held)
                    given[state.job.job_id] = held
                continue
            for gpu_model in self._best[state.job.job_id][1]:
                if state.job.gpus <= left[gpu_model]:
                    left[gpu_model] -= state.job.gpus
                    starting.append((state.job, gpu_model))
                    break
        for job, gpu_model in sorted(starting, key=lambda item: -item[0].gpus):
            allocation = free.place(job.gpus, gpu_models=[gpu_model])
            if allocation is not None:
                free.take(allocation)
                given[job.job_id] = allocation
        return Decision(given)

    def _runs_s(self, state: JobState, now_s: float) -> float:
        samples = state.remaining_at(now_s)
        return math.inf if samples is None else max(state.works_from_s - now_s, 0.0) + samples / state.samples_per_s

    def _waits_s(self, state: JobState, now_s: float, cluster: Cluster, predictor: Speeds) -> float:
        key = state.job.job_id, state.starts
        if key not in self._waiting_s:
            samples = state.remaining_at(now_s)
            step_s = self._best_step_s(state.job, cluster, predictor)
            self._waiting_s[key] = math.inf if samples is None else samples / state.job.batch * step_s
        return self._waiting_s[key]

    def _best_step_s(self, job: Job, cluster: Cluster, predictor: Speeds) -> float:
        """On the fastest model; remembers the models in that order."""
        if job.job_id not in self._best:
            spreads = {model: cluster.packed(job.gpus, model) for model in cluster.gpu_models}
            steps = {
                model: predictor.step(job, spread, job.batch).step_s
                for model, spread in spreads.items()
                if spread.gpus == job.gpus
            }
            self._best[job.job_id] = min(steps.values()), sorted(steps, key=lambda model: steps[model])
        return self._best[job.job_id][0]
