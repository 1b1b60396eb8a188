"""Decides what forwards without gradients are for: training (a teacher), a rollout of samples to learn from, or an
evaluation.

This uses no torch. Both the accounting of steps and the stack samples use this decision.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ddlprof.model.events import Purpose


class Read(Enum):
    """What the host first read of the results of a forward."""

    LOSS = 0
    """A single number with a fraction."""
    COUNT = 1
    """A single whole number: of correct answers, or an action."""
    VALUES = 2
    """An array: actions, tokens, predictions."""


@dataclass(eq=False, slots=True)
class NoGradModule:
    """A module that was called without gradients."""

    is_trained: bool = False
    """Whether parameters of it were seen in a forward with gradients, too."""
    last_step: int = -1
    """The number of the last step in which it may have been a teacher."""


@dataclass(eq=False, slots=True)
class NoGradCalls:
    """Facts about the calls without gradients of one module, in one mode and on one number of samples."""

    module: NoGradModule = field(default_factory=NoGradModule)
    training_mode: bool = False
    samples: int | None = None
    read: Read | None = None
    """What the host reads before the next forward; None if it reads nothing, or if reads are not watched any more."""
    generates: bool = False
    """Whether it is called again and again on tokens that follow those of the call before."""
    purpose: Purpose | None = None
    """What the last of these calls were for; None if it is not known yet."""

    def decide(self, trained_on: int | None) -> Purpose:
        """What the calls are for; `trained_on`: the samples of the training forward that follows, None if not known.

        The results of a teacher stay on the device and go with the whole batch into the loss. A model that acts gives
        its actions to the host, and a model that generates gives itself the next token, mostly for another number of
        samples than the update will take. An evaluation reads a loss or counts.
        """
        alike = None in (self.samples, trained_on) or self.samples == trained_on
        if not self.module.is_trained or (alike and self.read is None and not self.generates):
            return Purpose.TRAINING
        if self.read is Read.LOSS or not (self.training_mode or self.read is Read.VALUES or self.generates):
            return Purpose.EVALUATION
        return Purpose.ROLLOUT


class NoGradTimes(NamedTuple):
    """How the time of some forwards without gradients is divided among teaching, acting and evaluating."""

    teaching_ns: int = 0
    acting_ns: int = 0
    after_acting_ns: int = 0
    """The time after the acting forwards, which is booked elsewhere already and belongs to the rollout too."""
    evaluating_ns: int = 0
    evaluates: bool = False


@dataclass(slots=True)
class _Time:
    eval_mode: bool = False
    ns: int = 0
    after_ns: int = 0


class NoGradForwards:
    """The forwards without gradients between a request for a batch, or a training forward, and the next."""

    def __init__(self) -> None:
        self._times: dict[NoGradCalls | None, _Time] = {}
        self._last = _Time()

    def __bool__(self) -> bool:
        return bool(self._times)

    def begin(self, calls: NoGradCalls | None, eval_mode: bool) -> None:
        """Another forward begins; `calls` is None for compiled functions."""
        self._last = self._times.setdefault(calls, _Time())
        self._last.eval_mode |= eval_mode

    def book(self, ns: int) -> None:
        """Books time inside the last forward."""
        self._last.ns += ns

    def book_after(self, ns: int) -> None:
        """Books time after the last forward that no class claims."""
        self._last.after_ns += ns

    def times(self, training: bool, alone: bool, step: int, trained_on: int | None) -> NoGradTimes:
        """The time by what the forwards were for. `training`: a training forward follows; `alone`: no loader's batch.

        Without a loader's batch, a model in eval mode that is not called in every step is evaluated, not a teacher.
        """
        ns: Counter[Purpose] = Counter()
        after_ns: Counter[Purpose] = Counter()
        purposes = {calls: self._purpose(calls, training, alone, step, trained_on) for calls in self._times}
        acts = Purpose.ROLLOUT in purposes.values()
        for calls, time in self._times.items():
            purpose = purposes[calls]
            if acts and purpose is Purpose.EVALUATION:
                purpose = Purpose.ROLLOUT  # the values of the last states
            if calls is not None:
                calls.purpose = purpose
            ns[purpose] += time.ns
            after_ns[purpose] += time.after_ns
        return NoGradTimes(
            ns[Purpose.TRAINING],
            ns[Purpose.ROLLOUT],
            after_ns[Purpose.ROLLOUT],
            ns[Purpose.EVALUATION],
            evaluates=Purpose.EVALUATION in ns,
        )

    def evaluated(self) -> int | None:
        """The most samples of one of those that evaluated, after `times` said which did; None if not known."""
        if None in self._times:
            return None
        samples = [calls.samples for calls in self._times if calls is not None and calls.purpose is Purpose.EVALUATION]
        return None if None in samples else max((each or 0 for each in samples), default=0)

    def _purpose(
        self, calls: NoGradCalls | None, training: bool, alone: bool, step: int, trained_on: int | None
    ) -> Purpose:
        purpose = Purpose.TRAINING if calls is None else calls.decide(trained_on)
        if purpose is not Purpose.TRAINING:
            return purpose
        regular = calls is not None and step - calls.module.last_step <= 1
        if calls is not None:
            calls.module.last_step = step
        teaches = training and (regular or not (alone and self._times[calls].eval_mode))
        return Purpose.TRAINING if teaches else Purpose.EVALUATION
