"""Goodput: what share of the time of all machines a job made progress in, over all its attempts.

A step counts as new once: the same step after a restart is done again. All sums are in seconds of ranks (GPU-seconds
where ranks have a GPU), so attempts with different numbers of ranks add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlprof.model.records import GOOD_ENDS
from ddlprof.model.trial import CHECKPOINT, EVALUATION, HANG, IDLE, START_UP, STEPS, AttemptFacts

NEW, AGAIN, WAITING = "new_steps", "repeated_steps", "waiting"
GOODPUT_PARTS = (NEW, AGAIN, CHECKPOINT, EVALUATION, START_UP, WAITING, HANG, IDLE)
"""The parts of the time of all machines, which add up to it. `waiting` is from one attempt to the next."""
MATCHED, TOLD, LAST, BEGINNING = "matched", "told", "last checkpoint", "beginning"
"""How it is known with which step an attempt began: it read a file that another attempt had written; what it read
names the step; or it is assumed, to be the last checkpoint, or the beginning where none was written or read."""


@dataclass(frozen=True)
class Begun:
    """An attempt in its job: with which step it began, and how that is known."""

    trial: AttemptFacts
    first_step: int
    known_by: str
    repeated: int
    """How many of its steps had been done before."""
    waited_s: float
    """From the end of the attempt before to its beginning, in seconds."""

    @property
    def reached(self) -> int:
        """The steps of the job that were done when it ended."""
        return self.first_step + self.trial.steps

    @property
    def repeated_s(self) -> float:
        """The time of the steps done again; all steps of an attempt count as equally long."""
        return self.trial.parts_s.get(STEPS, 0.0) * self.repeated / self.trial.steps if self.trial.steps else 0.0

    @property
    def ended_badly(self) -> bool:
        """Whether it was killed or failed, or still runs."""
        return self.trial.status not in GOOD_ENDS


@dataclass(frozen=True)
class Failure:
    """What the end of an attempt cost, in seconds of ranks: a hang before it, waiting, starting, steps done again."""

    attempt: int
    """The number of the attempt that ended, from 0."""
    status: str
    hang_s: float
    waiting_s: float
    start_up_s: float
    repeated_s: float

    @property
    def lost_s(self) -> float:
        """All that it cost."""
        return self.hang_s + self.waiting_s + self.start_up_s + self.repeated_s


@dataclass(frozen=True)
class Goodput:
    """A job over all its attempts. Times are seconds of ranks unless said otherwise."""

    begun: Sequence[Begun]
    parts_s: dict[str, float]
    """The time of each of `GOODPUT_PARTS`."""
    useful_s: float
    """The new steps, each as long as a typical step of its attempt."""
    new_steps: int
    failures: Sequence[Failure]
    wall_s: float
    """From the beginning of the first attempt to the end of the last, in seconds."""
    checkpoint_s: float | None
    """The mean seconds of one checkpoint; None: none was seen."""
    every_s: float | None
    """The mean seconds of training and evaluation for each checkpoint."""
    every_steps: float | None

    @property
    def total_s(self) -> float:
        """The time of all machines."""
        return sum(self.parts_s.values())

    @property
    def lost_s(self) -> float:
        """What all failures cost."""
        return sum(failure.lost_s for failure in self.failures)

    @property
    def share(self) -> float | None:
        """The goodput: useful steps times a typical step, over the time of all machines."""
        return self.useful_s / self.total_s if self.total_s > 0 else None

    @property
    def running_s(self) -> float:
        """The seconds in which attempts ran."""
        return sum(begun.trial.wall_s for begun in self.begun)

    @property
    def time_between_failures_s(self) -> float | None:
        """The mean running time for each failure, in seconds; None where nothing failed."""
        return self.running_s / len(self.failures) if self.failures else None


def goodput(trials: Sequence[AttemptFacts]) -> Goodput | None:
    """The goodput of a job; None without an attempt. Machines are held, and paid for, between attempts."""
    if not trials:
        return None
    begun = in_order(trials)
    parts = dict.fromkeys(GOODPUT_PARTS, 0.0)
    useful_s = 0.0
    for number, each in enumerate(begun):
        trial = each.trial
        for name in (CHECKPOINT, EVALUATION, START_UP, HANG, IDLE):
            parts[name] += trial.parts_s.get(name, 0.0) * trial.ranks
        parts[AGAIN] += each.repeated_s * trial.ranks
        parts[NEW] += (trial.parts_s.get(STEPS, 0.0) - each.repeated_s) * trial.ranks
        if number:
            parts[WAITING] += each.waited_s * begun[number - 1].trial.ranks
        if trial.step_s is not None:
            useful_s += (trial.steps - each.repeated) * trial.step_s * trial.ranks
    saved = sum(trial.checkpoints for trial in trials)
    between_s = sum(trial.parts_s.get(STEPS, 0.0) + trial.parts_s.get(EVALUATION, 0.0) for trial in trials)
    return Goodput(
        begun=begun,
        parts_s=parts,
        useful_s=useful_s,
        new_steps=sum(each.trial.steps - each.repeated for each in begun),
        failures=_failures(begun),
        wall_s=max(trial.end_unix_s for trial in trials) - min(trial.begin_unix_s for trial in trials),
        checkpoint_s=sum(trial.parts_s.get(CHECKPOINT, 0.0) for trial in trials) / saved if saved else None,
        every_s=between_s / saved if saved else None,
        every_steps=sum(trial.steps for trial in trials) / saved if saved else None,
    )


def in_order(trials: Sequence[AttemptFacts]) -> list[Begun]:
    """The attempts by the time they began, each with its first step and how many of its steps are done again."""
    found: list[Begun] = []
    saved = _Saved()
    reached, ended_s = 0, None
    for trial in sorted(trials, key=lambda each: each.begin_unix_s):
        first, known_by = saved.first_step(trial, reached if found else None)
        if not found:
            reached = first
        repeated = min(max(reached - first, 0), trial.steps)
        waited_s = 0.0 if ended_s is None else max(trial.begin_unix_s - ended_s, 0.0)
        if found and found[-1].trial.status == "stopped":
            waited_s = 0.0  # the job went on after its measured part, nobody knows how long
        found.append(Begun(trial, first, known_by, repeated, waited_s))
        saved.add(found[-1])
        reached = max(reached, found[-1].reached)
        ended_s = trial.end_unix_s if ended_s is None else max(ended_s, trial.end_unix_s)
    return found


class _Saved:
    """The checkpoints of the attempts so far, by the step of the job."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str], int] = {}
        """The step of the latest one with this file, and with this place."""
        self._last: int | None = None
        self._writers_are_known = False

    def add(self, attempt: Begun) -> None:
        """Adds the checkpoints of the attempt that comes next."""
        for save in attempt.trial.saves:
            self._last = attempt.first_step + save.step
            self._steps["file", save.file] = self._steps["place", save.place] = self._last
            self._writers_are_known |= bool(save.place)

    def first_step(self, trial: AttemptFacts, reached: int | None) -> tuple[int, str]:
        """The steps of the job that were done when the attempt began, and how this is known.

        `reached`: the steps that were done before it at most; None: it is the first attempt.
        """
        for names in ("file", "place"):
            for read in trial.reads:
                known = getattr(read, names)
                if known and (names, known) in self._steps:
                    return self._steps[names, known], MATCHED
        told = next((read.told for read in trial.reads if read.told is not None), None)
        if told is not None and (reached is None or told <= reached):
            return told, TOLD
        if self._last is None or (self._writers_are_known and not trial.reads):
            return 0, BEGINNING
        return self._last, LAST


def _failures(begun: Sequence[Begun]) -> list[Failure]:
    """What each bad end cost. The last attempt's end is a failure only where its job hung, as it may still run."""
    found = []
    for number, each in enumerate(begun):
        trial, hang_s = each.trial, each.trial.parts_s.get(HANG, 0.0)
        following = begun[number + 1] if number + 1 < len(begun) else None
        if not each.ended_badly or (following is None and trial.status == "torn" and not hang_s):
            continue
        after = (0.0, 0.0, 0.0)
        if following is not None:
            ranks = following.trial.ranks
            start_up_s = following.trial.parts_s.get(START_UP, 0.0)
            after = following.waited_s * trial.ranks, start_up_s * ranks, following.repeated_s * ranks
        found.append(Failure(number, trial.status, hang_s * trial.ranks, *after))
    return found
