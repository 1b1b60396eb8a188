"""Decides which steps are kept as rows, so that the files of a run of any length stay small.

Steps are kept until a budget of bytes is spent, their collectives included; then every second one until a smaller
budget is, then every fourth, and so on. The sums of the others are exact. Steps with a flag are kept besides those, up
to half of each budget. Strides are powers of two, so ranks that change theirs at different steps have those of the
larger stride in common.
"""

from __future__ import annotations

from typing import NamedTuple


class Budget(NamedTuple):
    """The bytes of all steps at stride 1, and at each later stride."""

    first: int = 24_000_000
    later: int = 2_000_000


class Retention:
    """The stride in force, and what is left of its budget."""

    def __init__(self, budget: Budget) -> None:
        self.stride = 1
        self._budget = budget
        self._left = budget.first
        self._unusual_left = budget.first

    def keeps(self, step: int, flags: int) -> bool:
        """Whether this step is kept as a row."""
        return step % self.stride == 0 or (flags != 0 and self._unusual_left > 0)

    def spend(self, step: int, size: int) -> bool:
        """Counts the bytes of a step that is kept, or of what belongs to it. Returns whether the stride changed."""
        self._left -= size
        if step % self.stride:
            self._unusual_left -= size
        if self._left > 0:
            return False
        self.stride *= 2
        self._left = self._budget.later
        self._unusual_left = self._budget.later // 2
        return True
