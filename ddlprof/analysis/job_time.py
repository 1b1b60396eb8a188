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

`start_up` is the time before the first step, `end` the time after the last. `evaluation`, `checkpoint`, `compilation`
and `profiling` (ours) are taken out of wherever they happened, before the first step and after the last, too. Of what
is left of the steps, `epoch_start` is the wait for the first batches of epochs beyond an ordinary wait, `warm_up` is
what the first steps took more than the mean of the steady ones, and `idle` what steps with an evaluation, a checkpoint
or the start of an epoch took more: code of the script's own. `steps` is the rest.
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
    """Epochs that began."""
    attempt: int = 0
    steps: int = 0
    """The steps of one rank."""
    until: str = "end"
    """What the wall time ends with: `end` of the job; `entry`, the last one of a job that was killed or still runs;
    `stopped`: the end of measuring (`--stop-after`), after which the job went on."""
    timed: bool = True
    """False for runs in which evaluations, checkpoints and compilations were not timed as such (older or imported
    ones): they are then what steps with such a flag took longer, and those after the last step are in `end`."""

    def share(self, part: str) -> float | None:
        """The share of a part of the wall time."""
        seconds = self.parts_s[part]
        return seconds / self.wall_s if seconds is not None and self.wall_s > 0 else None
