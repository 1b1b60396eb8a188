"""Step times for simulations of clusters in which placements cost nothing."""

from __future__ import annotations

from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import Placement
from ddlprof.extensions.cluster.speeds import StepTime


class AsMeasured:
    """Every placement is as fast as the one on which the job was measured."""

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        """The measured step, which counts as computation only."""
        step_s = job.step_s or 1.0
        return StepTime(step_s, step_s, step_s)
