"""The nearest changes of price, deadline and batch that change an answer: asked again there, the answer is another."""

from __future__ import annotations

from typing import Any

import pytest

from ddlprof.instance_catalog.own_prices import OwnPrices
from ddlprof.recommender.plans.flips import batch_flip, batches_tried, deadline_flip, price_flip
from ddlprof.recommender.plans.plan import Plan
from ddlprof.recommender.plans.shown import offer_of
from tests.unit.recommender.plans.test_ranking import HOUR, ask

BUDGETS_H = (2.1, 2.3, 2.39, 2.5, 3.0, 6.0, 9.0, 24.0)


def accepted(plans: list[Plan]) -> list[Plan]:
    return [plan for plan in plans if not plan.reason]


def machines(plan: Plan) -> tuple[Any, int]:
    return offer_of(plan), plan.nodes


def first(**question: Any) -> Plan | None:
    return next(iter(accepted(ask(**question))), None)


def test_a_lower_price_makes_another_type_the_cheapest() -> None:
    plans = accepted(ask())
    flip = price_flip(plans)
    assert flip is not None
    assert flip.less == pytest.approx(0.2)  # 8 USD in place of 10
    assert flip.more == pytest.approx(0.25)
    name = flip.plan.instance_type
    for share, cheapest in ((flip.less + 0.01, name), (flip.less - 0.01, plans[0].instance_type)):
        found = first(prices=OwnPrices(discounts={name: share}))
        assert found is not None
        assert found.instance_type == cheapest


@pytest.mark.parametrize("budget_h", BUDGETS_H)
def test_the_answer_is_another_at_the_deadline_and_the_same_before_it(budget_h: float) -> None:
    question: dict[str, Any] = {"max_nodes": 6, "budget_s": budget_h * HOUR}
    plans = ask(**question)
    flip = deadline_flip(plans, budget_h * HOUR)
    assert flip is not None
    assert flip.is_shorter == (flip.budget_s <= budget_h * HOUR)
    before, after = (1.0001, 0.9999) if flip.is_shorter else (0.9999, 1.0001)
    same, other = (first(**question | {"budget_s": flip.budget_s * factor}) for factor in (before, after))
    assert same is not None
    assert machines(same) == machines(plans[0])
    if flip.plan is None:
        assert other is None
    else:
        assert other is not None
        assert machines(other) == machines(flip.plan) != machines(plans[0])


def test_the_only_plan_in_time_leaves_none_with_less_time() -> None:
    plans = ask(instance_types=["big.1"], max_nodes=1)
    flip = deadline_flip(plans, 24 * HOUR)
    assert flip is not None
    assert (flip.plan, flip.is_shorter) == (None, True)
    assert flip.budget_s == pytest.approx(2.4 * HOUR)


def test_a_batch_that_was_tried_changes_the_answer() -> None:
    both: dict[str, Any] = {"pricing": ["on_demand", "spot"], "max_nodes": 1}
    plans = accepted(ask(batch_per_gpu=(2, 8, 64), **both))
    assert batches_tried(plans) == [2, 8, 64]
    assert plans[0].instance_type == "small.1"  # whose memory is too small for a batch of 64
    flip = batch_flip(plans)
    assert flip is not None
    assert (flip.batch_per_gpu, flip.plan.instance_type) == (64, "big.1")
    found = first(batch_per_gpu=64, **both)
    assert found is not None
    assert machines(found) == machines(flip.plan)


def test_machines_that_are_the_cheapest_with_each_batch_do_not_change() -> None:
    plans = accepted(ask(batch_per_gpu=(2, 8, 64)))
    assert {plan.instance_type for batch in (2, 8, 64) if (plan := first(batch_per_gpu=batch))} == {"big.1"}
    assert batch_flip(plans) is None
    assert batch_flip(accepted(ask())) is None
    assert batch_flip([]) is None
