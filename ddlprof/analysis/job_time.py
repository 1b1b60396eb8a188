"""Where the wall time of the whole job goes: what it takes besides ordinary steps."""

from __future__ import annotations

from dataclasses import dataclass

JOB_PARTS = (
    "start_up",
    "steps",
    "warm_up",
    "epoch_start",
    "evaluation",
    "checkpoint",
    "compilation",
    "profiling",
    "idle",
    "end",
)
"""The parts in the order shown; they partition the wall time of the job.

`steps` is what all steps would have taken at the mean of the steady ones; `warm_up` and `epoch_start` are what the
first steps and the first batches of epochs took more; `idle` is the rest between the first step and the last.
"""


@dataclass(frozen=True)
class JobTime:
    """The wall time of one attempt of the job, from the start of its first process to its end."""

    wall_s: float
    parts_s: dict[str, float | None]
    """The seconds of each of `JOB_PARTS`, which add up to `wall_s`; None where one was not measured."""
    evaluations: int | None = None
    """How many evaluations there were, like the next two fields; None: not known."""
    checkpoints: int | None = None
    epochs: int | None = None

    def share(self, part: str) -> float | None:
        """The share of a part of the wall time."""
        seconds = self.parts_s[part]
        return seconds / self.wall_s if seconds is not None and self.wall_s > 0 else None
