"""What GPUs are worth to jobs whose remaining work is known: their remaining time, and how many each should get."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from ddlprof.base.errors import DdlprofError
from ddlprof.cluster.jobs import JobState
from ddlprof.cluster.machines import Cluster, Spread
from ddlprof.cluster.speeds import Speeds


class Forecast:
    """Times of jobs at one moment, on GPUs as close together as they can be, with the batch that each asks for."""

    def __init__(
        self,
        cluster: Cluster,
        predictor: Speeds,
        now_s: float,
        restart_s: float,
        known: dict[tuple[str, int], float] | None = None,
    ) -> None:
        """`restart_s`: what a job that changes its GPUs loses. `known`: step times from earlier moments, kept there."""
        self._known = {} if known is None else known
        self._cluster, self._predictor, self._now_s, self._restart_s = cluster, predictor, now_s, restart_s

    def remaining_s(self, state: JobState, gpus: int) -> float:
        """The time until the job ends on so many GPUs; infinite where nobody can tell or it cannot run on them."""
        samples = state.remaining_at(self._now_s)
        return math.inf if samples is None else samples / state.job.batch * self._step_s(state, gpus)

    def remaining_gpu_s(self, state: JobState) -> float:
        """The service that it still needs on the GPUs that it asks for."""
        return self.remaining_s(state, state.job.gpus) * state.job.gpus

    def is_elastic(self, state: JobState) -> bool:
        """Whether there is something to choose: the others get what they ask for."""
        return state.job.max_gpus is not None and state.remaining_at(self._now_s) is not None

    def cheapest(self, state: JobState) -> int:
        """The GPUs, no more than it asks for, on which its end costs the fewest GPU-seconds; the more if equal."""
        job = state.job
        sizes = range(job.gpus, min(job.min_gpus, job.gpus) - 1, -1)
        return min(sizes, key=lambda gpus: gpus * self._step_s(state, gpus))

    def shared_out(self, states: Sequence[JobState]) -> dict[str, int]:
        """How many GPUs each of the jobs gets, by job_id: those first in order get what they ask for or, if elastic,
        their cheapest; what is left goes where each further GPU saves the most time.
        """
        left, sizes = self._cluster.gpus, {}
        for state in states:
            gpus = self.cheapest(state) if self.is_elastic(state) else state.job.gpus
            if gpus <= left:
                sizes[state.job.job_id] = gpus
                left -= gpus
        growing = {state.job.job_id: state for state in states if state.job.job_id in sizes and self.is_elastic(state)}
        offers = [offer for state in growing.values() if (offer := self._gain(state, sizes, left)) is not None]
        heapq.heapify(offers)
        while offers:
            _, job_id, gpus = heapq.heappop(offers)
            if gpus - sizes[job_id] <= left:
                left -= gpus - sizes[job_id]
                sizes[job_id] = gpus
            offer = self._gain(growing[job_id], sizes, left)
            if offer is not None:
                heapq.heappush(offers, offer)
        return sizes

    def _gain(self, state: JobState, sizes: dict[str, int], left: int) -> tuple[float, str, int] | None:
        """(minus the seconds that each further GPU saves, job_id, GPUs then) where it saves the most; None: nowhere."""
        job = state.job
        has = sizes[job.job_id]
        most = min(max(job.max_gpus or job.gpus, job.gpus), has + left)
        gains = [
            ((self._until_end_s(state, gpus) - self._until_end_s(state, has)) / (gpus - has), job.job_id, gpus)
            for gpus in range(has + 1, most + 1)
        ]
        best = min(gains, default=None)
        return best if best is not None and best[0] < 0 else None

    def _until_end_s(self, state: JobState, gpus: int) -> float:
        held = state.allocation.gpus if state.allocation is not None else gpus
        return self.remaining_s(state, gpus) + (self._restart_s if gpus != held else 0.0)

    def _step_s(self, state: JobState, gpus: int) -> float:
        key = state.job.job_id, gpus
        if key not in self._known:
            spreads = [self._cluster.packed(gpus, gpu_model) for gpu_model in self._cluster.gpu_models]
            times = [self._told_s(state, spread) for spread in spreads if spread.gpus == gpus <= state.job.batch]
            self._known[key] = min(times, default=math.inf)
        return self._known[key]

    def _told_s(self, state: JobState, spread: Spread) -> float:
        try:
            return self._predictor.step(state.job, spread, state.job.batch).step_s
        except DdlprofError:  # nobody knows this size, so nobody gets it
            return math.inf
