"""Collectives of known duration on the timeline of a device that does not say when they end."""

from __future__ import annotations

import random
from typing import Any

from ddlprof.collect.hooks.collective import IssuedCollective
from ddlprof.collect.steps.sums import place_collectives as place
from ddlprof.collect.steps.sums import share_wait, wait_end


def made(
    duration: int | None, need: int | None = None, exposed: int | None = None, group: str = "0"
) -> IssuedCollective:
    collective = IssuedCollective(group, 0, "allreduce", 1000, 2, 5)
    collective.duration, collective.need, collective.exposed = duration, need, exposed
    return collective


def times(collectives: list[IssuedCollective]) -> list[tuple[Any, ...]]:
    return [(c.ready, c.end, c.exposed) for c in collectives]


def test_the_last_one_ends_with_the_wait_and_those_before_it_in_a_row() -> None:
    # Computation waits from 100 to 150, which so far the first one has claimed.
    collectives = [made(40, 100, 50), made(20, 100, 0), made(10, 100, 0)]
    assert place(collectives, 200)
    assert times(collectives) == [(80, 120, 20), (100, 140, 20), (120, 150, 10)]


def test_who_had_to_queue_was_there_when_the_one_before_began_or_computation_waited() -> None:
    one, two = made(60, 100, 50), made(20, 100, 0)
    place([one, two], 200)
    assert (one.ready, two.ready) == (70, 100)  # issued by 100 at the latest, though it began at 130


def test_a_hidden_collective_is_over_when_it_is_needed() -> None:
    collectives = [made(30, 100, 0), made(20, 140, 5)]
    place(collectives, 200)
    assert times(collectives) == [(70, 100, 0), (125, 145, 5)]


def test_one_that_nobody_waits_for_is_over_at_the_end_of_the_step() -> None:
    collectives = [made(30, 100, 10), made(20)]
    place(collectives, 200)
    assert times(collectives) == [(80, 110, 10), (180, 200, None)]


def test_groups_have_queues_of_their_own() -> None:
    collectives = [made(30, 100, 20, "a"), made(15, 100, 0, "b")]
    place(collectives, 200)
    assert times(collectives) == [(90, 120, 5), (105, 120, 15)]


def test_a_wait_that_no_collective_explains_is_nobodys() -> None:
    collectives = [made(10, 100, 50)]
    place(collectives, 200)
    assert times(collectives) == [(140, 150, 10)]


def test_nothing_is_changed_unless_all_durations_are_known() -> None:
    collectives = [made(10, 100, 50), made(None, 100, 0)]
    before = times(collectives)
    assert not place(collectives, 200)
    assert times(collectives) == before
    assert not place([], 200)


def test_no_more_is_exposed_than_was_waited() -> None:
    drawn = random.Random(1)
    for _ in range(300):
        waits = sorted(drawn.sample(range(1000), 3))
        collectives = []
        for need in waits:
            for first in (True, False, False)[: drawn.randint(1, 3)]:
                exposed = drawn.randint(0, 90) if first else 0
                collectives.append(made(drawn.randint(0, 100), need, exposed, drawn.choice("ab")))
        lengths = {need: sum(c.exposed or 0 for c in collectives if c.need == need) for need in waits}
        assert place(collectives, 2000)
        for need, length in lengths.items():
            mine = [c.exposed or 0 for c in collectives if c.need == need]
            assert all(each >= 0 for each in mine)
            assert sum(mine) <= length


def test_a_wait_ends_when_it_is_said_to() -> None:
    ended, unknown = [made(10), made(10)], made(10)
    ended[0].end, ended[1].end = 140, 160
    assert wait_end(ended, None, 100, 200) == 200
    assert wait_end(ended, 150, 100, 200) == 150
    assert [wait_end(ended, bounded, 100, 200) for bounded in (50, 250)] == [100, 200]
    assert wait_end(ended, True, 100, 200) == 160
    assert wait_end([*ended, unknown], True, 100, 200) == 200


def test_a_wait_for_what_went_on_after_the_backward_counts() -> None:
    """As in reducers of a script's own, which issue in the backward and wait after it."""
    over, going_on = made(None), made(None)
    over.end, going_on.end = 90, 180
    share_wait([over, going_on], False, 80, 80, 100)
    share_wait([over], True, 110, 110, 111)
    share_wait([going_on], True, 120, 120, 185)
    assert (over.need, over.exposed) == (80, 10)
    assert (going_on.need, going_on.exposed) == (120, 10 + 65)


def test_a_second_wait_for_what_is_over_changes_nothing() -> None:
    one = made(None)
    one.end = 150
    for begin, end in ((100, 150), (150, 151), (160, 170)):
        share_wait([one], True, begin, begin, end)
    assert (one.need, one.exposed) == (100, 50)
