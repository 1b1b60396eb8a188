"""AITurbo: jobs whose end can be foretold are served by a vote of two orders, all others by the service attained.

Zhao, Li, Qu, Zhan, Zhang: "AITurbo: Unified Compute Allocation for Partial Predictable Training in Commodity
Clusters", HPDC 2021. GPUs are the only resource here: CPU workers and parameter servers, which the paper shares out as
well, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddlprof.base.errors import UserError
from ddlprof.cluster.benefit import Forecast
from ddlprof.cluster.jobs import JobState
from ddlprof.cluster.machines import Allocation, Cluster, Level
from ddlprof.cluster.offers import Offers
from ddlprof.cluster.policies.las import Las, consolidated
from ddlprof.cluster.policy import Decision
from ddlprof.cluster.speeds import Speeds

ROUND_S = 240.0
_SLACK_S = 1e-3


class Aiturbo(Las):
    """The queues of `Las`; without a predictable job it is `Las`.

    Once a round, and when a job becomes predictable, sizes are chosen anew; in between they stay.
    """

    def __init__(
        self, limit_gpu_h: float = 16.0, queues: float = 2.0, round_s: float = ROUND_S, restart_s: float = 30.0
    ) -> None:
        """`restart_s`: what a job that changes its GPUs loses, so that it is changed only where that pays."""
        super().__init__(limit_gpu_h, queues)
        if not (0 < round_s < math.inf and 0 <= restart_s < math.inf):
            raise UserError("--policy aiturbo: round_s must be more than 0, restart_s 0 or more")
        self.round_s = round_s
        self._restart_s = restart_s
        self._round = -1
        self._since_s: float | None = None
        self._predictable: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._steps_s: dict[tuple[str, int], float] = {}

    def ordered(self, states: Sequence[JobState], now_s: float, forecast: Forecast) -> list[JobState]:
        """In the order in which they are served: by the sum of two positions, and by attained service if equal."""
        served = self.in_queues(states, now_s)
        known = [state for state in served if state.remaining_at(now_s) is not None]
        score = scores(
            [state.job.job_id for state in served],
            [state.job.job_id for state in sorted(known, key=forecast.remaining_gpu_s)],
        )
        return sorted(served, key=lambda state: score[state.job.job_id])

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        """Chooses sizes if they are due, then gives GPUs in order; nobody moves who keeps its size."""
        forecast = Forecast(cluster, predictor, now_s, self._restart_s, self._steps_s)
        bidders = self.ordered([*queue, *running], now_s, forecast)
        if self._are_sizes_due(bidders, now_s):
            self._sizes = forecast.shared_out(bidders)
        offers = Offers(cluster, running, bidders, now_s)
        given = {}
        for state in bidders:
            wanted = self._bid(offers, state, cluster, forecast)
            if wanted is not None:
                given[state.job.job_id] = wanted
        wakes = [
            self.next_fall_s(bidders, given, now_s),
            self._next_predictable_s(bidders, given, now_s, cluster, predictor),
        ]
        return Decision(given, min((wake for wake in wakes if wake is not None), default=None))

    def _are_sizes_due(self, states: Sequence[JobState], now_s: float) -> bool:
        self._since_s = now_s if self._since_s is None else self._since_s
        this_round = math.floor((now_s - self._since_s + _SLACK_S) / (self.round_s or ROUND_S))
        predictable = {state.job.job_id for state in states if state.remaining_at(now_s) is not None}
        due = this_round > self._round or not predictable <= self._predictable
        self._round, self._predictable = this_round, predictable
        return due

    def _bid(self, offers: Offers, state: JobState, cluster: Cluster, forecast: Forecast) -> Allocation | None:
        if not forecast.is_elastic(state):
            return offers.keep(state) or offers.bid(state, consolidated(state.job, cluster))
        size = self._sizes.get(state.job.job_id) or forecast.cheapest(state)
        if state.allocation is not None and state.allocation.gpus == size:
            kept = offers.keep(state)
            if kept is not None:
                return kept
        for gpus in sorted({size, min(size, state.job.gpus)}, reverse=True):
            wanted = offers.bid(state, cluster.packed(gpus, cluster.gpu_models[0]).level, gpus)
            if wanted is not None:
                return wanted
        return offers.bid(state, Level.NETWORK, min(size, forecast.cheapest(state)))

    def _next_predictable_s(
        self,
        states: Sequence[JobState],
        given: dict[str, Allocation],
        now_s: float,
        cluster: Cluster,
        predictor: Speeds,
    ) -> float | None:
        """When the next of those that run from now on becomes predictable; None: none does. Too early for those that
        start now by what their start takes."""
        times = []
        for state in states:
            allocation = given.get(state.job.job_id)
            if allocation is None or state.expected_samples is None or state.remaining_at(now_s) is not None:
                continue
            missing = (state.expected_from_samples - state.done_at(now_s)) / state.job.batch
            step_s = predictor.step(state.job, cluster.spread(allocation), state.job.batch).step_s
            times.append(max(state.works_from_s, now_s) + missing * step_s + _SLACK_S)
        return min(times, default=None)


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
