"""Which rank the others wait for: named where it is one, and where it has the time to show for it."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.analysis.late_rank import LateRank, find_late_rank
from ddlprof.analysis.summary import Summary
from ddlprof.analysis.traffic import RankTraffic, _correlation
from ddlprof.analysis.uncertainty import lowest_share
from tests.unit.analysis.test_diagnosis import summary

ALIKE = {"compute": 80, "data": 5, "comm": 15}


def traffic(last: int, late: int = 100, correlation: float = 0.0) -> RankTraffic:
    """Of a rank that was last in so many of the steps in which some rank was late."""
    return RankTraffic(Counter(), 0, 0.0, 3 * late, 3 * last, late, last, correlation, frozenset(), 0, 0)


def late_rank(
    ranks: dict[int, Summary], last: dict[int, int], late: int = 100, waits: float | None = 0.2
) -> LateRank | None:
    return find_late_rank(ranks, {rank: traffic(last[rank], late) for rank in ranks}, waits)


@pytest.mark.parametrize(
    ("queued", "share"),
    [
        ({}, None),
        ({0: 0.01, 1: 0.02, 2: 0.5}, 0.5),
        ({2: 0.5}, 0.5),
        ({0: 0.01, 1: 0.02, 2: 0.05}, None),  # too little to be worth a word
        ({0: 0.45, 1: 0.48, 2: 0.5}, None),  # all wait alike, so it is not why one of them is late
        ({0: 0.5, 1: 0.5}, None),
    ],
)
def test_a_rank_that_is_late_for_want_of_a_processor(queued: dict[int, float], share: float | None) -> None:
    ranks = {0: summary(**ALIKE), 1: summary(**ALIKE), 2: summary(compute=95, data=5)}
    late = find_late_rank(ranks, {0: traffic(5), 1: traffic(5), 2: traffic(90)}, 0.2, queued)
    assert late is not None
    assert (late.rank, late.queued_share) == (2, share)


@pytest.mark.parametrize(("last", "late"), [({0: 50, 1: 50}, 100), ({0: 44, 1: 56}, 100), ({0: 0, 1: 9}, 9),
                                             ({0: 6, 1: 14}, 20), ({0: 0, 1: 0}, 0)])  # fmt: skip
def test_chance_makes_no_late_rank(last: dict[int, int], late: int) -> None:
    ranks = {0: summary(**ALIKE), 1: summary(compute=75, data=25)}
    assert late_rank(ranks, last, late) is None


def test_a_rank_that_does_nothing_more_than_the_others_is_not_late() -> None:
    assert late_rank({0: summary(**ALIKE), 1: summary(**ALIKE)}, {0: 20, 1: 80}) is None
    assert late_rank({0: summary(**ALIKE), 1: summary(compute=81, data=5, comm=14)}, {0: 10, 1: 90}) is None


def test_one_of_two_equal_ranks_takes_a_stall_that_is_worth_a_warning() -> None:
    two = {0: summary(**ALIKE), 1: summary(compute=85, data=10, comm=5)}
    assert late_rank(two, {0: 20, 1: 80}, waits=0.05) is None
    assert late_rank(two, {0: 20, 1: 80}, waits=0.12) is not None
    three = {**two, 2: summary(**ALIKE)}
    assert late_rank(three, {0: 10, 1: 80, 2: 10}, waits=0.05) is not None
    assert late_rank(three, {0: 10, 1: 80, 2: 10}, waits=0.01) is None


def test_correlation_with_the_next_step() -> None:
    turns = np.repeat([True, False, True, False], 25)
    assert _correlation(turns) > 0.9
    assert _correlation(np.arange(100) % 2 == 0) == 0
    assert _correlation(np.ones(9, dtype=bool)) == 0
    assert _correlation(np.zeros(0, dtype=bool)) == 0


@given(st.integers(1, 1000), st.floats(0, 1), st.floats(0, 1))
def test_the_lowest_share_is_below_the_share(of: int, part: float, correlation: float) -> None:
    count = round(part * of)
    lowest = lowest_share(count, of, correlation)
    assert 0 <= lowest <= count / of + 1e-12
    assert lowest <= lowest_share(count, of) + 1e-12


@given(st.lists(st.tuples(st.integers(60, 80), st.integers(0, 40), st.integers(0, 100)), min_size=2, max_size=6),
       st.floats(0, 0.5), st.randoms())  # fmt: skip
def test_the_order_of_the_ranks_changes_nothing(
    of_ranks: list[tuple[int, int, int]], waits: float, random: Random
) -> None:
    ranks = {number: summary(compute=compute, data=data) for number, (compute, data, _) in enumerate(of_ranks)}
    seen = {number: traffic(last) for number, (_, _, last) in enumerate(of_ranks)}
    shuffled = list(ranks)
    random.shuffle(shuffled)
    found = find_late_rank(ranks, seen, waits)
    assert find_late_rank({n: ranks[n] for n in shuffled}, {n: seen[n] for n in reversed(shuffled)}, waits) == found
