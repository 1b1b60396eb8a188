"""The phases of a training: stretches of steps that the updates of one optimizer end, one after the other.

A training in one phase, as nearly all are, has nothing to tell: the first phase is told with the second.
"""

from __future__ import annotations

from ddlprof.collect.steps.boundaries import StepBoundaries
from ddlprof.model.records import Phase

MOST_PHASES = 1000
"""The most phases that are told apart: a script may make an optimizer for each of its batches."""
LEFT_OUT = f"not told apart after the first {MOST_PHASES:,}: phases of the training"


class Phases:
    """Takes the optimizer that ended each step; `take` gives the phases that have begun since the last call."""

    def __init__(self, boundaries: StepBoundaries) -> None:
        self.number = 0
        """The number of phases so far."""
        self._boundaries = boundaries
        self._optimizer: int | None = None
        self._begun: list[Phase] = []

    def step_ended(self, step: int, optimizer: int) -> None:
        """An update of this optimizer has ended the step."""
        if optimizer == self._optimizer:
            return
        self._optimizer = optimizer
        self.number += 1
        of, known = self._boundaries, optimizer in self._boundaries.names
        if known and self.number <= MOST_PHASES:
            self._begun.append(Phase(step, of.names[optimizer], of.sizes[optimizer], of.models[optimizer]))

    def take(self) -> list[Phase]:
        """The phases that have begun since the last call, once there are two."""
        if self.number < 2:
            return []
        begun, self._begun = self._begun, []
        return begun
