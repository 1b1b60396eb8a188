"""Which rank the others wait for: named where it is one, and where it has the time to show for it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.analysis.late_rank import LateRank, find_late_rank
from ddlprof.analysis.lateness import Lateness
from ddlprof.analysis.summary import Summary
from ddlprof.analysis.uncertainty import lowest_share
from tests.unit.analysis.test_diagnosis import summary

ALIKE = {"compute": 80, "data": 5, "comm": 15}
LATE = {"compute": 90, "data": 10}


def lateness(last: int, late: int = 100) -> Lateness:
    """Of a rank that was last in so many of the steps in which some rank was late, all by as much."""
    is_last = np.random.default_rng(7).permutation(np.arange(late) < last)
    return waits([1000] * late, [1000 if each else 0 for each in is_last])


def waits(lost_us: Sequence[int], kept_us: Sequence[int], first: int = 0) -> Lateness:
    return Lateness(np.arange(first, first + len(lost_us)), np.array(lost_us, int), np.array(kept_us, int))


def test_a_rank_that_works_longer_waits_longer_for_processors_that_all_lack() -> None:
    ranks = {0: summary(compute=25, comm=75), 1: summary(compute=95, comm=5)}
    seen = {0: lateness(2), 1: lateness(98)}
    for queued, share in (({0: 0.19, 1: 0.75}, None), ({0: 0.01, 1: 0.75}, 0.75)):
        found = find_late_rank(ranks, seen, 0.35, queued)
        assert found is not None
        assert found.queued_share == share


def late_rank(
    ranks: dict[int, Summary], last: dict[int, int], late: int = 100, waited: float | None = 0.1
) -> LateRank | None:
    return find_late_rank(ranks, {rank: lateness(last[rank], late) for rank in ranks}, waited)


@pytest.mark.parametrize(
    ("queued", "share"),
    [
        ({}, None),
        ({0: 0.01, 1: 0.02, 2: 0.5}, 0.5),
        ({2: 0.5}, 0.5),
        ({0: 0.01, 1: 0.02, 2: 0.05}, None),  # too little to be worth a word
        ({0: 0.45, 1: 0.48, 2: 0.5}, None),  # all wait alike, so it is not why one of them is late
        ({0: 0.5, 1: 0.5}, None),
        ({0: 0.2, 1: 0.2, 2: 0.75}, 0.75),
    ],
)
def test_a_rank_that_is_late_for_want_of_a_processor(queued: dict[int, float], share: float | None) -> None:
    ranks = {0: summary(**ALIKE), 1: summary(**ALIKE), 2: summary(compute=95, data=5)}
    late = find_late_rank(ranks, {0: lateness(5), 1: lateness(5), 2: lateness(90)}, 0.1, queued)
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


def test_a_rank_that_alone_has_a_loader_is_late_by_its_waits_for_it() -> None:
    ranks = {0: summary(data=60, compute=30, comm=10), 1: summary(data=None, compute=30, comm=70)}
    found = late_rank(ranks, {0: 95, 1: 5})
    assert found is not None
    assert (found.rank, found.cause, found.typical_ns, found.others_load) == (0, "data", 0, False)
    found = late_rank(ranks | {1: summary(data=10, compute=30, comm=60)}, {0: 95, 1: 5})
    assert found is not None
    assert found.others_load


def test_what_a_rank_does_longer_explains_half_of_the_waiting() -> None:
    two = {0: summary(**ALIKE), 1: summary(**LATE)}  # the other waits 15 ms for it, both together 7.5 ms each
    assert late_rank(two, {0: 10, 1: 90}, waited=0.14) is not None
    assert late_rank(two, {0: 10, 1: 90}, waited=0.16) is None


def test_one_of_two_equal_ranks_takes_a_stall_that_is_worth_a_warning() -> None:
    two = {0: summary(**ALIKE), 1: summary(**LATE)}
    assert late_rank(two, {0: 20, 1: 80}, waited=0.05) is None
    assert late_rank(two, {0: 20, 1: 80}, waited=0.12) is not None
    three = {**two, 2: summary(**ALIKE)}
    assert late_rank(three, {0: 10, 1: 80, 2: 10}, waited=0.05) is not None
    assert late_rank(three, {0: 10, 1: 80, 2: 10}, waited=0.01) is None


def test_a_late_rank_outweighs_all_jitter_in_its_favour() -> None:
    """It is waited for 60 ms in each step, and the other one 60 times a millisecond before and after."""
    found = find_late_rank(
        {0: summary(**ALIKE), 1: summary(compute=140, data=5, comm=5)},
        {0: waits([64_000] * 40, [4_000] * 40), 1: waits([64_000] * 40, [60_000] * 40)},
        0.2,
    )
    assert found is not None
    assert found.rank == 1
    assert found.last_share == pytest.approx(60 / 64)


def test_one_long_wait_is_an_accident() -> None:
    once = waits([100] * 99 + [10**6], [50] * 99 + [10**6])
    assert once.share > 0.9
    assert once.steps < 1.1
    ranks = {0: summary(**ALIKE), 1: summary(**LATE)}
    assert find_late_rank(ranks, {0: waits([100] * 100, [50] * 100), 1: once}, 0.1) is None


def test_ranks_that_take_long_turns_are_not_late() -> None:
    turns = np.repeat([True, False, True], 40)
    mine = waits([1000] * 120, [1000 if each else 0 for each in turns])
    assert mine.share > 0.6
    assert mine.correlation > 0.9
    assert mine.lowest < 0.5 < waits([1000] * 120, [1000 if each % 3 else 0 for each in range(120)]).lowest


def test_correlation_with_the_next_step() -> None:
    assert waits([9] * 100, [9, 0] * 50).correlation == 0
    assert waits([9] * 9, [9] * 9).correlation == 0
    assert waits([0] * 9, [0] * 9).correlation == 0
    assert waits([], []).correlation == 0


@pytest.mark.parametrize(
    ("late", "phases"),
    [
        ([(40, 80)], ((40, 79),)),
        ([(0, 20), (60, 75)], ((0, 19), (60, 74))),
        ([(0, 120)], ()),  # always
        ([(40, 80), (81, 90)], ((40, 89),)),  # a step in which it was in time ends no phase
        ([(40, 45)], ()),  # an accident
        ([(at, at + 10) for at in range(0, 120, 24)], ()),  # a habit
        ([(at, at + 1) for at in range(0, 120, 10)], ()),
    ],
)
def test_phases_are_told_with_their_steps(late: list[tuple[int, int]], phases: tuple[tuple[int, int], ...]) -> None:
    kept = [60_000 if any(first <= step < last for first, last in late) else 30 * (step % 2) for step in range(120)]
    assert waits([max(each, 60) for each in kept], kept).phases == phases
    moved = tuple((first + 100, last + 100) for first, last in phases)
    assert waits([max(each, 60) for each in kept], kept, first=100).phases == moved


def test_the_part_of_a_class_that_takes_longer_is_named() -> None:
    usual = {"compute": 80, "comm": 20, "compute_forward": 30, "compute_backward": 50}
    ranks = {0: summary(**usual), 1: summary(compute=100, compute_forward=30, compute_backward=70)}
    found = late_rank(ranks, {0: 5, 1: 95}, waited=0.1)
    assert found is not None
    assert (found.cause, found.part, found.more_ns) == ("compute", "compute_backward", 20 * 10**6)
    ranks[1] = summary(compute=100, compute_forward=40, compute_backward=60)
    found = late_rank(ranks, {0: 5, 1: 95}, waited=0.1)
    assert found is not None
    assert found.part is None


@given(st.integers(1, 1000), st.floats(0, 1), st.floats(0, 1))
def test_the_lowest_share_is_below_the_share(of: int, part: float, correlation: float) -> None:
    count = round(part * of)
    lowest = lowest_share(count, of, correlation)
    assert 0 <= lowest <= count / of + 1e-12
    assert lowest <= lowest_share(count, of) + 1e-12


@given(st.lists(st.tuples(st.integers(60, 80), st.integers(0, 40), st.integers(0, 100)), min_size=2, max_size=6),
       st.floats(0, 0.5), st.randoms())  # fmt: skip
def test_the_order_of_the_ranks_changes_nothing(
    of_ranks: list[tuple[int, int, int]], waited: float, random: Random
) -> None:
    ranks = {number: summary(compute=compute, data=data) for number, (compute, data, _) in enumerate(of_ranks)}
    seen = {number: lateness(last) for number, (_, _, last) in enumerate(of_ranks)}
    shuffled = list(ranks)
    random.shuffle(shuffled)
    found = find_late_rank(ranks, seen, waited)
    assert find_late_rank({n: ranks[n] for n in shuffled}, {n: seen[n] for n in reversed(shuffled)}, waited) == found
