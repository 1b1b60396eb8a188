"""Which plans an answer shows, and the knee of time against cost."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ddlprof.recommender.plans.ranking import front_of
from ddlprof.recommender.plans.shown import fastest_of, knee, knee_of, offer_of, rows_of
from tests.unit.recommender.plans.test_ranking import ask

PLANS = ask(max_nodes=6, pricing=["on_demand", "spot"])
ACCEPTED = [plan for plan in PLANS if not plan.reason]


def test_a_row_is_an_offer_at_its_best_size_with_the_others_counted() -> None:
    rows = rows_of(ACCEPTED, None, 100)
    best = [row for row in rows if not row.is_fastest]
    offers = [offer_of(row.plan) for row in best]
    assert len(offers) == len(set(offers)) > 2
    assert {offer[3] for offer in offers} == {"on_demand", "spot"}
    for row in best:
        same = [plan for plan in ACCEPTED if offer_of(plan) == offer_of(row.plan)]
        assert row.plan is same[0]  # the accepted plans come by cost
    assert sum(row.folded for row in rows) + len(rows) == len(ACCEPTED)
    assert all(ACCEPTED[row.position - 1] is row.plan for row in rows)


def test_the_cheapest_the_fastest_and_the_knee_are_always_there() -> None:
    found = knee_of(front_of(PLANS))
    assert found is not None
    rows = rows_of(ACCEPTED, found, 1)
    assert rows[0].plan is ACCEPTED[0]
    assert [row.plan for row in rows if row.is_knee] == [found]
    fastest = fastest_of(ACCEPTED)
    assert [row.plan for row in rows if row.is_fastest] == [fastest]
    assert fastest is not None
    assert fastest.time_s == min(plan.time_s or 0.0 for plan in ACCEPTED)
    assert len(rows) == len({id(row.plan) for row in rows}) <= 3


def test_the_knee_is_where_both_ways_to_go_on_are_poor() -> None:
    # From 2 h to 1 h the cost is 50 times as high, from 2 h to 100 h it falls by a tenth.
    assert knee([(1, 500), (2, 10), (100, 9)]) == 1
    assert knee([(1, 100), (10, 30), (100, 1)]) is None  # above the line
    assert knee([(1, 100), (10, 10), (100, 1)]) is None  # on it: each way costs as much as it wins
    assert knee([(1, 100), (100, 1)]) is None
    assert knee([(5.44, 103), (8.74, 22.4), (9.1, 20.0)]) is None  # a tenth dearer for 4 % less time
    assert knee([(0.9, 9_000), (0.98, 73), (1.0, 1)]) is None  # 73 times the cost for 2 % less time
    assert knee([]) is None
    assert knee([(1, 5), (1, 5), (1, 5)]) is None  # which is no front


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=3, max_size=9), st.floats(0.01, 100))
def test_the_knee_does_not_depend_on_units(steps: list[tuple[float, float]], factor: float) -> None:
    front, x, y = [], 1.0, 1e30
    for more, less in steps:
        x, y = x * (1.01 + more), y / (1.01 + less)
        front.append((x, y))
    number = knee(front)
    scaled = knee([(x * factor, y / factor) for x, y in front])
    assert scaled == number or None in (number, scaled)  # of a point that is nearly on the line
    if number is not None:
        assert 0 < number < len(front) - 1


def test_plans_that_cost_nothing_have_no_knee() -> None:
    front = [replace(plan, cost_usd=0.0) for plan in front_of(PLANS)]
    assert knee_of(front) is None
