"""What a job does again and again besides steps, and after how many of them; for who predicts a longer job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.job_time import JobTime
from ddlprof.analysis.steady import unusual_here
from ddlprof.model.records import CHECKPOINT, EVALUATION, Flag

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt, RankAnalysis

_FLAGS = {EVALUATION: Flag.EVALUATION, CHECKPOINT: Flag.CHECKPOINT}


@dataclass(frozen=True)
class Habit:
    """Something that takes time besides steps. `every_steps` None: seen only before the first or after the last."""

    seconds: float
    """The mean of one time."""
    every_steps: float | None


def habits(attempt: Attempt, job: JobTime) -> dict[str, Habit]:
    """`evaluation`, `checkpoint` and `epoch_start`, those that were seen and timed."""
    found: dict[str, Habit] = {}
    for what, flag in _FLAGS.items() if job.timed else ():
        # One rank's: what several do at once happens once.
        rank = max(attempt.ranks, key=lambda rank: sum(span.what == what for span in rank.data.spans))
        habit = _recurring(rank, what)
        if habit is not None and unusual_here(rank.data.steps["flags"]) & flag:  # else it is in the mean step
            found[what] = habit
    waited = job.parts_s["epoch_start"]
    if job.epochs and waited is not None:
        found["epoch_start"] = Habit(waited / job.epochs, _steps_an_epoch(attempt))
    return found


def _recurring(rank: RankAnalysis, what: str) -> Habit | None:
    """How often: by those with steps on both sides. The one at the end may have come early, as the run was short."""
    spans = [span for span in rank.data.spans if span.what == what]
    if not spans:
        return None
    seconds = sum(span.duration_ns for span in spans) / len(spans) / 1e9
    starts, numbers = rank.data.steps["start_ns"], rank.data.steps["step"]
    if not len(starts):
        return Habit(seconds, None)
    last = int(starts[-1] + rank.data.steps["step_ns"][-1])
    inside = [span.start_ns for span in spans if int(starts[0]) < span.start_ns < last]
    # A span lies in the step after which it is followed by training: that many steps came before it.
    before = [int(numbers[np.searchsorted(starts, begin, side="right") - 1]) for begin in inside]
    between = [steps for steps in before if steps > 0]
    return Habit(seconds, max(between) / len(between) if between else None)


def _steps_an_epoch(attempt: Attempt) -> float | None:
    """None where only one epoch began."""
    rank = min(attempt.ranks, key=lambda rank: rank.data.rank)
    began = rank.data.steps["step"][rank.flags & int(Flag.EPOCH_START) != 0]
    return float(began[-1] - began[0]) / (len(began) - 1) if len(began) > 1 else None
