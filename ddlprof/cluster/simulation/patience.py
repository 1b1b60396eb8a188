"""Ends simulations that would never end: a policy may wait, but not for ever."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddlprof.base.errors import UserError
from ddlprof.cluster.jobs import JobState

IDLE_QUESTIONS = 30_000
"""Questions in a row after which nothing runs though jobs wait: with rounds of a minute, three weeks."""
QUICK_QUESTIONS = 1_000
"""Questions in a row, each within microseconds of the last."""
FRUITLESS_STOPS = 20_000
"""Stops in a row of jobs that had not come beyond their restart."""


@dataclass
class Patience:
    """Counts what happens again and again without any progress."""

    asked_s: float = -math.inf
    idle: int = 0
    quick: int = 0
    fruitless: int = 0

    def asked(self, now_s: float, moment_s: float, waiting: JobState | None, nothing_runs: bool) -> None:
        """After each question. `moment_s`: how close two questions are if they are as one."""
        self.quick = self.quick + 1 if now_s - self.asked_s <= 2 * moment_s else 0
        self.asked_s = now_s
        self.idle = self.idle + 1 if nothing_runs and waiting is not None else 0
        if self.quick > QUICK_QUESTIONS:
            raise UserError(f"the policy wants to be asked again at once, for ever, at {now_s:g} s: see its wake_s")
        if self.idle > IDLE_QUESTIONS and waiting is not None:
            raise never_runs(waiting)

    def stopped(self, has_progressed: bool) -> None:
        """After each stop of a job."""
        self.fruitless = 0 if has_progressed else self.fruitless + 1
        if self.fruitless > FRUITLESS_STOPS:
            raise UserError(
                "the policy stops every job before it has made progress after its restart: give it a longer lease or"
                " longer rounds, or simulate cheaper restarts"
            )


def never_runs(waiting: JobState) -> UserError:
    """The error about a policy that leaves a job waiting for ever."""
    job = waiting.job
    return UserError(
        f"the policy never runs job {job.job_id}, which asks for {job.gpus} GPUs, though nothing else runs"
    )
