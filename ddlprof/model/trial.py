"""One attempt of a job in a few numbers: what its goodput is made of, over attempts that may be in several runs.

They are made by `ddlprof.analysis.trials`, kept in `summary.json`, and added up by `ddlprof.analysis.goodput`.
"""

from __future__ import annotations

from dataclasses import dataclass

STEPS, CHECKPOINT, EVALUATION, START_UP, HANG, IDLE = TRIAL_PARTS = (
    "steps", "checkpoint", "evaluation", "start_up", "hang", "idle",
)  # fmt: skip
"""The parts of an attempt's wall time. `start_up` has compilation and warm-up, `hang` is time without a step."""
MOST_SAVES = 20
"""The most checkpoints that are kept of an attempt, the last ones: a job goes on from one of these."""


@dataclass(frozen=True)
class SavedAt:
    """A checkpoint after `step` steps of the attempt. The hashes are those of `CheckpointFile`."""

    step: int
    place: str = ""
    file: str = ""


@dataclass(frozen=True)
class ReadFrom:
    """A file that was read before the first step."""

    place: str = ""
    file: str = ""
    told: int | None = None
    """The step that its content names."""


@dataclass(frozen=True)
class AttemptFacts:
    """One attempt of a job. Seconds are wall time of the attempt, whatever its number of ranks."""

    begin_unix_s: float
    end_unix_s: float
    ranks: int
    machines: int
    steps: int
    """The steps of one rank."""
    step_s: float | None
    """The mean steady step without hangs; None: no step was measured."""
    parts_s: dict[str, float]
    """The seconds of each of `TRIAL_PARTS`, which add up to the wall time."""
    status: str
    """How it ended: ok, stopped, torn (killed, or it still runs), ..."""
    checkpoints: int = 0
    samples_per_step: int | None = None
    device: str = ""
    """The device: `cpu`, or the accelerator's name."""
    saves: tuple[SavedAt, ...] = ()
    reads: tuple[ReadFrom, ...] = ()

    @property
    def wall_s(self) -> float:
        """The seconds from its beginning to its end, or to the last word of any rank."""
        return sum(self.parts_s.values())
