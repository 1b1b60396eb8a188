"""Does, in the helper thread, what is due after certain steps: opens files, records facts, and ends the measuring."""

from __future__ import annotations

from collections.abc import Callable

from ddlprof.base.errors import complain
from ddlprof.collect.job.rank_group import RankGroup
from ddlprof.collect.job.rank_output import RankOutput
from ddlprof.model.options import Options
from ddlprof.model.records import Flag, StepRow
from ddlprof.writing.writer import FinishedStep

_LEARN_AT_STEP = 3
_UNUSUAL = int(Flag.EPOCH_START | Flag.EVALUATION | Flag.CHECKPOINT | Flag.COMPILE | Flag.TRACED)
WARMUP_STEPS = 20
"""`--stop-after` counts the steps after these: the most steps that the analysis ever takes for warm-up."""


class RankProgress:
    """One rank's progress. `learn(row)` records the facts known after the first steps, `stop` ends the measuring."""

    def __init__(
        self,
        options: Options,
        rank_output: RankOutput,
        rank_group: RankGroup,
        learn: Callable[[StepRow], None],
        stop: Callable[[], None],
    ) -> None:
        self.steps = 0
        """The number of steps that have ended."""
        self.warned = False
        """Whether the user was told that this rank is not recorded."""
        self._options = options
        self._rank_output = rank_output
        self._rank_group = rank_group
        self._learn = learn
        self._stop = stop
        self._steady = 0
        self._opened = False

    @property
    def stopped(self) -> bool:
        """Whether as many steps were measured as `--stop-after` says."""
        return self._options.stop_after is not None and self._steady >= self._options.stop_after

    def step_ended(self, step: FinishedStep) -> None:
        """Counts a step that has ended, and does what is due after it. Called with each step, in order."""
        self.steps += 1
        if self.steps == 1:
            self.open()
        if self.steps == _LEARN_AT_STEP:
            self._learn(step.row)
        if self.steps > WARMUP_STEPS and not step.row.flags & _UNUSUAL:
            self._steady += 1
            if self._steady == self._options.stop_after:
                self._stop()

    def poll(self, last: bool = False) -> None:
        """Called about once a second, and at the end."""
        self._rank_group.poll(last)
        if not self._opened and self.steps:
            self.open(last)

    def open(self, last: bool = False) -> None:
        """Begins to write this rank's files, unless rank 0 has not told yet where, or they cannot be written yet."""
        if self._rank_group.undecided:
            return
        self._opened = self._rank_output.open(last)
        if self._rank_output.writer.failure:
            who = (
                f"rank {self._rank_output.rank}"
                if self._rank_output.grouped
                else f"process {self._rank_output.header.pid}"
            )
            self._warn(f"{self._rank_output.writer.failure}: {who} is not recorded; the training goes on")

    def closed(self) -> None:
        """Called once the files are closed: warns the user, once, if they are incomplete."""
        failure = self._rank_output.writer.failure
        if failure and not self.warned:
            self._warn(f"{failure}; the last steps are not recorded")

    def _warn(self, message: str) -> None:
        self.warned = True
        if not self._options.quiet:
            complain(message)
