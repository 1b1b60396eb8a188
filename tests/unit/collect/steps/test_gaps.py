from __future__ import annotations

import pytest

from ddlprof.collect.steps.gaps import Gaps, busy_ns
from ddlprof.collect.steps.loop import Gap

MS = 1_000_000
PLACE = (4, 5, 1)


def gap(wall: float, cpu: float, waited: float = 0, operators: list[tuple[float, float]] | None = None) -> Gap:
    """Of so many milliseconds."""
    spans = None if operators is None else [(round(b * MS), round(e * MS)) for b, e in operators]
    end = f"0 {round(waited * MS)} 7".encode()
    return Gap(PLACE, round(wall * MS), (0, b"0 0 7"), (round(cpu * MS), end), spans)


@pytest.mark.parametrize(
    ("operators", "busy"),
    [
        ([], 0),
        ([(0, 10)], 10),
        ([(2, 3), (5, 7)], 3),
        ([(2, 3), (3.05, 4), (4.2, 5)], 2.8),  # the interpreter between two operators
        ([(0.05, 1), (9.0, 9.95)], 2),  # and at both ends
        ([(1, 5), (2, 3)], 4),
        ([(8, 12)], 4),
    ],
)
def test_time_in_operators(operators: list[tuple[float, float]], busy: float) -> None:
    spans = [(round(b * MS), round(e * MS)) for b, e in operators]
    assert busy_ns(spans, 10 * MS) == pytest.approx(min(busy, 10) * MS)


def test_communication_in_the_gap_is_not_counted_again() -> None:
    assert Gaps().idle_ns(gap(10, cpu=1), 7 * MS) == 2 * MS


def test_a_place_full_of_operators_is_computing_however_long_they_take() -> None:
    gaps = Gaps()
    gaps.look(gap(10, cpu=6, operators=[(0, 9.9)]))
    assert gaps.idle_ns(gap(14, cpu=6), 0) == 0
    assert gaps.idle_ns(gap(50, cpu=6), 0) == 40 * MS  # but something was done there this time


def test_the_median_of_several_looks() -> None:
    gaps = Gaps()
    for busy in (2, 2, 9):
        gaps.look(gap(20, cpu=20, operators=[(0, busy)]))
    assert gaps.idle_ns(gap(20, cpu=20), 0) == 18 * MS
