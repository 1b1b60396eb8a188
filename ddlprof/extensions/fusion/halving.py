"""Successive halving: after some steps only the best trials go on, and later only the best of these.

Jamieson and Talwalkar 2016 ("Non-stochastic best arm identification and hyperparameter optimization", AISTATS). Li et
al. 2020 (ASHA, MLSys) do the same without waiting for the slowest trial; models that train as one are at the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.results import HALVING


@dataclass(frozen=True)
class Halving:
    """How trials are ended."""

    factor: int
    """Of so many trials, one goes on; and it trains so many times as long until the next decision."""
    first: int | None = None
    """The steps before the first decision; None: as few as leave one trial at the last one."""

    def rungs(self, trials: int, steps: int) -> list[int]:
        """The steps after which trials are ended, of a training of `steps` steps.

        None at all, if there are too few trials or steps. Raises UserError if `first` is too late.
        """
        first = self.first
        if first is None:
            decisions, left = 0, trials
            while left >= self.factor:
                decisions, left = decisions + 1, left // self.factor
            first = max(1, steps // self.factor**decisions)
        if self.first is not None and first >= steps:
            raise UserError(
                f"--first-rung {first}: the training has {steps} steps; give fewer, so that trials are ended before"
            )
        found = []
        while first < steps:
            found.append(first)
            first *= self.factor
        return found

    def left_of(self, trials: int) -> int:
        """How many of so many trials go on."""
        return max(1, trials // self.factor)


def best(scores: Sequence[float], number: int) -> set[int]:
    """The places of so many smallest scores; of equal ones the first."""
    return set(sorted(range(len(scores)), key=lambda place: scores[place])[:number])


class HalvingGroup(Protocol):
    """A group of trials that can be trained for a while."""

    numbers: list[int]

    def advance(self, until: int | None, step_done: Callable[[int], None]) -> None:
        """Trains until this number of steps, or to the end."""

    def scores(self) -> list[float]:
        """What its trials are ranked by, less being better."""

    def leave(self, places: Sequence[int], why: str) -> None:
        """Ends some of its trials."""


G = TypeVar("G", bound=HalvingGroup)


def halve(
    groups: Sequence[G], halving: Halving, rungs: Sequence[int], between: Callable[[G], None],
    regroup: Callable[[list[G]], list[G]], step_done: Callable[[int], None],
) -> list[G]:  # fmt: skip
    """Trains groups by turns until the last rung, ending the worst of all their trials at each. Returns those left.

    `between`: called with a group whose turn is over. `regroup`: puts trials that are left together.
    """
    left, number = list(groups), sum(len(group.numbers) for group in groups)
    for rung in rungs:
        number = halving.left_of(number)
        scored: list[tuple[G, list[float]]] = []
        for group in left:
            group.advance(rung, step_done)
            scored.append((group, group.scores() if group.numbers else []))
            between(group)
        kept = best([score for _, scores in scored for score in scores], number)
        begin = 0
        for group, scores in scored:
            ends = [place for place in range(len(scores)) if begin + place not in kept]
            begin += len(scores)
            if ends:
                group.leave(ends, HALVING)
        left = regroup([group for group in left if group.numbers])
    return left
