"""What everything here rests on: (job, placement, batch) -> step time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ddlprof.cluster.jobs import Job
from ddlprof.cluster.machines import Spread


@dataclass(frozen=True)
class StepTime:
    """One update of a job: seconds with their 80 % interval."""

    step_s: float
    low_s: float
    high_s: float
    comm_s: float = 0.0
    """Exposed communication, a part of `step_s`."""


class Speeds(Protocol):
    """Tells step times; the same answer for the same question, and quickly, as simulations ask millions of times."""

    def step(self, job: Job, spread: Spread, batch: int) -> StepTime:
        """One update of `batch` samples in all. Raises `DdlprofError` where it cannot be told."""


class AsMeasured:
    """Every placement is as fast as that on which a job was measured, and more GPUs or samples are not known."""

    def step(self, job: Job, spread: Spread, batch: int) -> StepTime:
        """The measured step, as if it computed all the time."""
        step_s = job.step_s or 1.0
        return StepTime(step_s, step_s, step_s)
