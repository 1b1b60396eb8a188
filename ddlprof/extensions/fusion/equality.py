"""Checks that trials that train as one begin as each does by itself, in a process of its own where that matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from ddlprof.extensions.fusion.apart import Remote
from ddlprof.extensions.fusion.first_steps import (
    FIRST_STEPS,
    FirstSteps,
    difference,
    gradients_of,
    largest_difference,
)
from ddlprof.extensions.fusion.loop import over_epochs
from ddlprof.extensions.fusion.planner import PartSpec, group_training
from ddlprof.extensions.fusion.random_state import draw_others, draws_undone
from ddlprof.extensions.fusion.results import EqualityCheck
from ddlprof.extensions.fusion.training import Alone, TrainingMode


class NotEqual(Exception):
    """Models as one compute something else than each by itself. The text says what."""


class AloneFirst:
    """First steps of the trials of a group by themselves, each over the batches that the first of them would see."""

    def __init__(self, spec: PartSpec, group: Sequence[int], mode: TrainingMode) -> None:
        self._spec, self._task, self._trials, self._mode = spec, spec.task(), spec.values(group), mode

    def found(
        self, places: Sequence[int], steps: int, in_evaluation: bool = False, draws: bool = False
    ) -> dict[int, FirstSteps]:
        """What the trials at these places compute, the first one as in a process of its own.

        `draws`: whether the steps draw other random numbers than they would.
        """
        following = over_epochs(self._task, self._spec.common, self._spec.options.length)
        self._task.model(self._trials[0])  # draws what the first trial draws before its batches
        seen: list[list[Any]] = []
        found = {}
        for place in places:
            with draws_undone(self._task.device):
                training = Alone(self._task, self._trials[place], self._mode.steps)
            if in_evaluation:
                training.eval()
            losses, gradients = [], []
            for step in range(steps):
                if step == len(seen):
                    seen.append(next(following)[0])
                losses.append(self._loss(training, seen[step], draws))
                if step in (0, steps - 1):
                    gradients.append(gradients_of(training.models()[0]))
            found[place] = FirstSteps(losses, gradients)
        return found

    def _loss(self, training: Alone, batches: list[Any], draws: bool) -> float:
        if not draws:
            return training.step(*batches).item()
        with draws_undone(self._task.device):
            draw_others()
            return training.step(*batches).item()


class _Check:
    def __init__(
        self, spec: PartSpec, start: Callable[..., Remote], group: list[int], mode: TrainingMode, is_low: bool
    ) -> None:
        self._spec, self._start, self._group, self._mode, self._is_low = spec, start, group, mode, is_low
        self.steps = 1 if is_low else FIRST_STEPS  # in 16 bits, the signs of an Adam's first update differ

    def together(self, in_evaluation: bool = False) -> list[FirstSteps]:
        """The first steps of all trials as one."""
        with closing(self._start(group_training, self._spec, self._group, self._mode, True)) as remote:
            return remote.call("first", 1 if in_evaluation else self.steps, in_evaluation)  # type: ignore[no-any-return]

    def alone(
        self, places: Sequence[int], steps: int, in_evaluation: bool = False, draws: bool = False
    ) -> dict[int, FirstSteps]:
        """Those of some trials by themselves, in a process of which the first has all to itself."""
        with closing(self._start(AloneFirst, self._spec, self._group, self._mode)) as remote:
            return remote.call("found", places, steps, in_evaluation, draws)  # type: ignore[no-any-return]

    def largest(self, in_evaluation: bool = False) -> float | None:
        """The largest difference of a loss, as a share of it; None: trials draw random numbers of their own.

        Trials share a process for their steps by themselves; one that differs is tried again in one of its own, as an
        earlier one may have changed what the user's code counts. Raises NotEqual.
        """
        together = self.together(in_evaluation)
        self.steps = steps = len(together[0].losses)  # fewer where the training is shorter
        alone = self.alone(range(len(together)), steps, in_evaluation)
        for place, one in enumerate(together):
            if difference(one, alone[place], self._is_low):
                alone |= self.alone([place], steps, in_evaluation)
            if found := difference(one, alone[place], self._is_low):
                other = self.alone([place], steps, in_evaluation, draws=True)[place]
                if difference(other, alone[place], self._is_low):
                    return None
                raise NotEqual(found)
        return max(largest_difference(one, alone[place]) for place, one in enumerate(together))


def checked(
    spec: PartSpec, start: Callable[..., Remote], groups: Sequence[list[int]], mode: TrainingMode
) -> EqualityCheck:
    """What the first steps of all groups showed. Raises NotEqual.

    Models that draw random numbers are compared in evaluation mode, if they train in that mode and draw none there.
    """
    is_low = spec.source.precision != "fp32"
    found: list[float] = []
    for group in groups:
        check = _Check(spec, start, group, mode, is_low)
        largest = check.largest()
        if largest is None:
            try:
                check.largest(in_evaluation=True)
            except NotEqual:
                raise
            except Exception:  # it does not train in that mode
                pass
            return EqualityCheck(0, None)
        found.append(largest)
    return EqualityCheck(check.steps, max(found))
