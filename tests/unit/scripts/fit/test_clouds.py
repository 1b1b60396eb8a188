"""The cheapest plan of one cloud beside that of all, for made-up machines whose costs can be checked in the head."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.recommender.plans.plan import Plan
from ddlprof.recommender.plans.ranking import recommend
from scripts.fit.clouds import EVERY_CLOUD, Answer, answers, cheapest, row_of, saving
from tests.unit.recommender.made_up import CATALOG, MadeUp, five_gib_and_half_a_sample, job

HOUR = 3600.0


@pytest.fixture
def plans() -> list[Plan]:
    """small.1: 12 h at most for 10 USD; big.1: 2.4 h for 8 USD; other.1 of gcp: 2.4 h for 6 USD. One machine each."""
    found = recommend(
        job(), samples=36e4, budget_s=1e9, cloud="any", max_nodes=1, startup_s=0.0, catalog=CATALOG,
        predictor=MadeUp(), memory=five_gib_and_half_a_sample,
    )  # fmt: skip
    measured = {"small.1": "g4dn.xlarge"}
    return [replace(p, instance_type=measured.get(p.instance_type, p.instance_type)) for p in found if not p.reason]


def test_the_cheapest_plan_meets_the_budget(plans: list[Plan]) -> None:
    best = cheapest(plans, 3 * HOUR)
    assert best is not None
    assert best.instance_type == "other.1"
    assert cheapest(plans, HOUR) is None


def test_a_cloud_is_held_against_all_of_them(plans: list[Plan]) -> None:
    found = answers({"job": plans}, "aws")
    assert {answer.all.instance_type for answer in found} == {"other.1"}
    assert {answer.one.instance_type for answer in found if answer.one} == {"big.1"}
    assert [saving(answer) for answer in found] == pytest.approx([0.25] * len(found))
    assert row_of("aws", found) == ["aws", "100%", "100%", "25%"]
    assert row_of("gcp", answers({"job": plans}, "gcp")) == ["gcp", "100%", "0%", ""]


def test_prices_of_a_market_count_where_it_is_asked_for(plans: list[Plan]) -> None:
    of_market = [replace(p, price_basis="market") if p.cloud == "gcp" else p for p in plans]
    assert {saving(answer) for answer in answers({"job": of_market}, "aws")} == {0.0}
    found = answers({"job": of_market}, EVERY_CLOUD)
    assert [saving(answer) for answer in found] == pytest.approx([0.25] * len(found))


def test_nothing_is_saved_where_the_cloud_has_no_plan(plans: list[Plan]) -> None:
    assert saving(Answer("job", None, plans[0])) == 0.0
