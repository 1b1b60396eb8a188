"""Which trials successive halving ends, and after how many steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.halving import Halving, best, halve


@pytest.mark.parametrize(
    ("halving", "trials", "steps", "expected"),
    [
        (Halving(3), 27, 2700, [100, 300, 900]),  # the example of the paper: 27, 9, 3 and 1 trial
        (Halving(2), 8, 80, [10, 20, 40]),
        (Halving(2), 8, 4, [1, 2]),
        (Halving(4, 5), 8, 100, [5, 20, 80]),
        (Halving(3), 2, 100, []),  # too few of which one could be the best
        (Halving(2), 8, 1, []),
    ],
)
def test_decisions_come_at_growing_steps(halving: Halving, trials: int, steps: int, expected: list[int]) -> None:
    assert halving.rungs(trials, steps) == expected


def test_a_first_decision_after_the_end_is_refused() -> None:
    with pytest.raises(UserError, match="--first-rung 100: the training has 100 steps; give fewer"):
        Halving(2, 100).rungs(4, 100)


def test_the_smallest_go_on_and_of_equal_ones_the_first() -> None:
    assert best([3.0, 1.0, float("inf"), 1.0, 2.0], 2) == {1, 3}
    assert best([1.0, 1.0, 1.0], 1) == {0}
    assert best([2.0], 5) == {0}


class Trials:
    """A group whose trials score their numbers."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers, self.steps = numbers, 0
        self.left: list[tuple[int, int, str]] = []

    def advance(self, until: int | None, step_done: Callable[[int], None]) -> None:
        assert until is not None
        assert until > self.steps
        self.steps = until
        step_done(until)

    def scores(self) -> list[float]:
        return [float(each) for each in self.numbers]

    def leave(self, places: Sequence[int], why: str) -> None:
        self.left += [(self.numbers[place], self.steps, why) for place in places]
        self.numbers = [each for place, each in enumerate(self.numbers) if place not in places]


def test_trials_of_all_groups_compete() -> None:
    groups = [Trials([7, 0, 6]), Trials([5, 4]), Trials([3, 2, 1])]
    turns: list[list[int]] = []
    left = halve(
        groups, Halving(2), [10, 20], lambda group: turns.append(list(group.numbers)), lambda each: each, lambda _: None
    )
    assert [group.numbers for group in left] == [[0], [1]]
    assert turns == [[7, 0, 6], [5, 4], [3, 2, 1], [0], [3, 2, 1]]
    ended = sorted(each for group in groups for each in group.left)
    assert ended == [(number, 10 if number > 3 else 20, "halving") for number in range(2, 8)]
