"""Optimus: shortest remaining time first, and GPUs where each saves the most; a job without a forecast comes last.

Peng, Bao, Chen, Wu, Guo: "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters", EuroSys 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddlprof.cluster.benefit import Forecast
from ddlprof.cluster.jobs import JobState
from ddlprof.cluster.policies.aiturbo import Aiturbo


class Optimus(Aiturbo):
    """It needs a forecast to give a job anything, and takes every job to have one. Those that have none are served by
    attained service, with what the others leave.
    """

    def ordered(self, states: Sequence[JobState], now_s: float, forecast: Forecast) -> list[JobState]:
        """In the order in which they are served."""
        served = self.in_queues(states, now_s)
        return sorted(served, key=lambda state: forecast.remaining_s(state, state.job.gpus))  # infinite: in that order
