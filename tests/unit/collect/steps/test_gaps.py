from __future__ import annotations

import pytest

from ddlprof.collect.steps.gaps import Gaps, busy_ns
from ddlprof.collect.steps.loop import Gap
from ddlprof.model.events import Kind

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


def test_where_nobody_looked_the_blocked_time_is_idle() -> None:
    gaps = Gaps()
    assert gaps.idle_ns(gap(10, cpu=1), 0) == 9 * MS
    assert gaps.idle_ns(gap(10, cpu=1, waited=4), 0) == round(5 / 6 * 10 * MS)
    assert gaps.idle_ns(gap(10, cpu=10), 0) == 0
    assert gaps.idle_ns(gap(10, cpu=9.8), 0) == 0


def test_communication_in_the_gap_is_not_counted_again() -> None:
    assert Gaps().idle_ns(gap(10, cpu=1), 7 * MS) == 2 * MS


def test_what_operators_do_not_take_is_idle() -> None:
    gaps = Gaps()
    gaps.look(gap(10, cpu=10, operators=[(0, 3)]))
    assert gaps.idle_ns(gap(10, cpu=10), 0) == 7 * MS
    assert gaps.idle_ns(gap(25, cpu=10), 0) == 22 * MS
    assert gaps.idle_ns(gap(0.3, cpu=0.3), 0) == 0


def test_operators_that_take_longer_do_so_by_processor_time() -> None:
    gaps = Gaps()
    gaps.look(gap(10, cpu=1, operators=[(0, 1)]))  # and a sleep
    assert gaps.idle_ns(gap(12, cpu=3), 0) == 9 * MS


def test_a_thread_that_waits_for_its_helpers_in_an_operator_computes() -> None:
    gaps = Gaps()
    gaps.look(gap(10, cpu=3, operators=[(0, 6)]))
    assert gaps.idle_ns(gap(10, cpu=3), 0) == 4 * MS


def test_a_place_full_of_operators_is_computing_however_long_they_take() -> None:
    gaps = Gaps()
    gaps.look(gap(10, cpu=6, operators=[(0, 9.9)]))
    assert gaps.idle_ns(gap(14, cpu=6), 0) == 0
    assert gaps.idle_ns(gap(50, cpu=6), 0) == 40 * MS  # but something was done there this time


def test_a_thread_of_which_only_the_processor_time_is_known_was_not_blocked() -> None:
    gaps = Gaps()
    alone = gap(10, cpu=6)._replace(begin=(0, b""), end=(6 * MS, b""))
    assert gaps.idle_ns(alone, 0) == 0
    gaps.look(gap(10, cpu=10, operators=[(0, 3)]))
    assert gaps.idle_ns(alone, 0) == 7 * MS


def test_waiting_for_a_processor_lengthens_operators_too() -> None:
    gaps = Gaps()
    gaps.look(gap(1, cpu=1, operators=[(0, 0.9)]))
    assert gaps.idle_ns(gap(5, cpu=1, waited=4), 0) == 0


def test_the_median_of_several_looks() -> None:
    gaps = Gaps()
    for busy in (2, 2, 9):
        gaps.look(gap(20, cpu=20, operators=[(0, busy)]))
    assert gaps.idle_ns(gap(20, cpu=20), 0) == 18 * MS


def test_what_is_told_later_is_asked_for() -> None:
    gaps = Gaps()
    gaps.look(gap(10, cpu=10)._replace(operators=lambda: [(0, 3 * MS)]))
    gaps.look(gap(10, cpu=10)._replace(operators=lambda: None))
    assert gaps.idle_ns(gap(10, cpu=10), 0) == 7 * MS


def test_a_gap_that_a_coarse_clock_does_not_see() -> None:
    gaps = Gaps()
    gaps.look(gap(0, cpu=0, operators=[]))
    assert gaps.idle_ns(gap(0, cpu=0), 0) == 0


BEFORE = (int(Kind.OPTIMIZER_END), int(Kind.BACKWARD_BEGIN), 1)


def test_a_loss_that_began_in_a_gap_takes_its_share_of_the_processor_time() -> None:
    gaps = Gaps()
    gaps.look(gap(10, cpu=4, operators=[(6, 9)])._replace(place=BEFORE))
    assert gaps.early_ns(gap(10, cpu=4)._replace(place=BEFORE)) == 3 * MS
    assert gaps.early_ns(gap(30, cpu=4)._replace(place=BEFORE)) == 3 * MS  # a longer sleep
    assert gaps.early_ns(gap(20, cpu=8)._replace(place=BEFORE)) == 6 * MS


def test_on_a_busy_machine_a_loss_takes_its_share_of_the_time() -> None:
    gaps = Gaps()
    gaps.look(gap(30, cpu=10, operators=[(15, 30)])._replace(place=BEFORE))  # twice as much work as there is time
    for waited in (0, 20):
        assert gaps.early_ns(gap(30, cpu=10, waited=waited)._replace(place=BEFORE)) == 15 * MS
    busy = gap(30, cpu=10)._replace(place=BEFORE, begin=(0, b""))  # nobody asked how long it waited
    assert gaps.early_ns(busy) == 15 * MS


def test_where_nobody_looked_only_what_a_backward_follows_is_of_a_loss() -> None:
    gaps = Gaps()
    assert gaps.early_ns(gap(10, cpu=4)._replace(place=BEFORE)) == 4 * MS
    assert gaps.early_ns(gap(10, cpu=4)._replace(place=(*BEFORE[:1], int(Kind.FORWARD_BEGIN), 1))) == 0


def test_a_gap_without_operators_of_a_loss_is_of_none() -> None:
    gaps = Gaps()
    gaps.look(gap(10, cpu=10, operators=[])._replace(place=BEFORE))
    assert gaps.early_ns(gap(10, cpu=10)._replace(place=BEFORE)) == 0
