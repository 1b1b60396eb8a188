"""The spans in which the job evaluated, wrote checkpoints or compiled, inside or outside of steps.

Times are on the events' clock. `StepAssembler`, which knows what was an evaluation, adds spans; so do hooks whose
events belong to no step.
"""

from __future__ import annotations

from collections import Counter

from ddlprof.model.checkpoint_files import SAVED, CheckpointFile
from ddlprof.model.events import Kind
from ddlprof.model.records import CHECKPOINT, EVALUATION, JobSpan

MOST_SPANS = 10_000
"""The most spans kept of each kind: a loop that evaluates in every step must not fill the disk."""

LEFT_OUT = "not told apart after the first {most:,}: {what}"


class JobSpans:
    """Evaluations and checkpoints in the order of events; `take` gives the spans that are over."""

    def __init__(self, origin: int) -> None:
        self.left_out: set[str] = set()
        """Kinds with more than `MOST_SPANS` spans."""
        self._origin = origin
        self._over: list[JobSpan] = []
        self._written: list[CheckpointFile] = []
        self._counts: Counter[str] = Counter()
        self._writing_since: int | None = None
        self._files = 0
        self._open: dict[str, tuple[int, int]] = {}

    def add(self, what: str, begin: int, end: int) -> None:
        """Adds a finished span; `begin` and `end` are nanoseconds on the events' clock."""
        self._counts[what] += 1
        if self._counts[what] > MOST_SPANS:
            self.left_out.add(what)
        elif end >= begin:
            self._over.append(JobSpan(what, begin - self._origin, end - begin))

    def evaluation(self, begin: int, end: int) -> None:
        """Adds a batch that was evaluated; the code between two such batches belongs to the evaluation."""
        self._extend(EVALUATION, begin, end)

    def checkpoint(self, kind: int, time: int, step: int = 0, where: tuple[str, str] | None = None) -> None:
        """Takes the events of a call that writes; calls in a row are one checkpoint, with what is between them.

        `step` is the number of steps before it, `where` the hashes of the file, see `CheckpointFile`.
        """
        if kind == Kind.CHECKPOINT_BEGIN:
            self._writing_since = time
        elif kind == Kind.CHECKPOINT_END and self._writing_since is not None:
            self._extend(CHECKPOINT, min(self._writing_since, time), time)
            self._writing_since = None
            self._files += 1
            if self._files <= MOST_SPANS:
                self._written.append(CheckpointFile(SAVED, step, *(where or ("", ""))))

    def trained(self, what: str | None = None) -> None:
        """Called when training goes on: ends the open spans, or only that of the kind `what`."""
        if not self._open:  # in nearly every step
            return
        for each in [what] if what else list(self._open):
            if each in self._open:
                self.add(each, *self._open.pop(each))

    def lost(self, time: int) -> None:
        """Called where events were lost before this time: what was open is over."""
        self._writing_since = time
        self.trained()

    def take(self) -> list[JobSpan]:
        """The spans that have ended since the last call."""
        over, self._over = self._over, []
        return over

    def take_files(self) -> list[CheckpointFile]:
        """The checkpoints that were written since the last call."""
        written, self._written = self._written, []
        return written

    def _extend(self, what: str, begin: int, end: int) -> None:
        first, last = self._open.get(what, (begin, end))
        self._open[what] = min(first, begin), max(last, end)
