"""Which plans are made, what is rejected and why, in which order they come, the Pareto front and the bill."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.instance_catalog import CatalogError, Price
from ddlprof.instance_catalog.own_prices import OwnPrices
from ddlprof.model.operators import StepMemory, StepOperators
from ddlprof.recommender import PredictionError, Settings
from ddlprof.recommender.plans.plan import Plan, cost_usd
from ddlprof.recommender.plans.ranking import pareto_front, recommend
from ddlprof.recommender.workload import Workload
from tests.unit.recommender.made_up import CATALOG, MadeUp, five_gib_and_half_a_sample, job

HOUR = 3600.0


def ask(workload: Workload | None = None, **question: Any) -> list[Plan]:
    """Ten hours of work on one small GPU, to be done in a day, unless said otherwise."""
    defaults: dict[str, Any] = {
        "samples": 10 * HOUR * 10,
        "budget_s": 24 * HOUR,
        "max_nodes": 2,
        "startup_s": 0.0,
        "catalog": CATALOG,
        "predictor": MadeUp(),
        "memory": five_gib_and_half_a_sample,
    }
    return recommend(workload or job(), **{**defaults, **question})


def accepted(plans: list[Plan]) -> list[tuple[str, int]]:
    return [(plan.instance_type, plan.nodes) for plan in plans if not plan.reason]


def of(plans: list[Plan], instance_type: str, nodes: int = 1) -> Plan:
    return next(p for p in plans if (p.instance_type, p.nodes) == (instance_type, nodes))


def test_the_cheapest_that_meets_the_budget_comes_first() -> None:
    plans = ask()
    # big.1: 2 h for 8 USD. small.1: 10 h for 10 USD. small.4: 2.5 h at 5 USD an hour.
    assert accepted(plans)[:3] == [("big.1", 1), ("small.1", 1), ("small.4", 1)]
    best = plans[0]
    assert best.time_s == pytest.approx(2 * HOUR)
    assert [best.time_low_s, best.time_high_s] == pytest.approx([1.6 * HOUR, 2.4 * HOUR])
    assert best.cost_usd == pytest.approx(8.0)
    assert [best.cost_low_usd, best.cost_high_usd] == pytest.approx([6.4, 9.6])
    assert (best.placement, best.gpus, best.global_batch, best.steps) == ((1,), 1, 8, 45000)
    assert (best.meets_budget, best.fits_memory, best.extrapolated, best.price_as_of) == (
        True,
        True,
        True,
        "2026-07-20",
    )


def test_it_is_told_how_many_types_are_done() -> None:
    told: list[tuple[int, int]] = []
    plans = ask(advance=lambda done, total: told.append((done, total)))
    types = len({plan.instance_type for plan in plans})
    assert told == [(done, types) for done in range(types)]


def test_a_budget_is_met_by_the_upper_end_of_the_interval() -> None:
    assert ("big.1", 1) in accepted(ask(budget_s=2.41 * HOUR))
    plan = of(ask(budget_s=2.3 * HOUR), "big.1")
    assert plan.time_s is not None
    assert plan.time_s < 2.3 * HOUR
    assert (plan.rejection, plan.meets_budget) == ("over budget", False)
    assert plan.reason == "over budget: up to 2.4 h, budget 2.3 h"


def test_rejected_ones_come_last_and_say_why() -> None:
    plans = ask()
    reasons = [plan.reason for plan in plans]
    assert reasons == sorted(reasons, key=bool)
    assert of(plans, "old.1").rejection == "retired"
    assert of(plans, "slice.1").reason == "fraction of a GPU: 0.5 of one Small"
    assert Counter(plan.instance_type for plan in plans if plan.reason)["old.1"] == 1
    assert "other.1" not in {plan.instance_type for plan in plans}  # another cloud


def test_a_batch_that_fits_nowhere_is_refused_with_the_largest_that_fits() -> None:
    words = (
        r"a batch of 500 fits into the memory of no GPU in question; the largest that fits is 174, on Big \(100 GiB\)"
    )
    with pytest.raises(PredictionError, match=words) as raised:
        ask(job(batch=500))
    assert "\n" not in str(raised.value)
    with pytest.raises(PredictionError, match="the largest that fits is 8, on Small"):
        ask(job(batch=500), instance_types=["small.1", "old.1", "slice.1"])
    with pytest.raises(PredictionError, match="not even one sample fits"):
        ask(memory=lambda *_: 1000.0)


def test_memory_follows_from_the_operators_of_the_step_and_what_is_asked() -> None:
    counted = StepMemory(2.0 * 2**30, 2.0 * 2**30, points=((0.0, 4.0 * 2**30), (2.0 * 2**30, 2.0**30)))
    step = StepOperators(8, "fp32", (), optimizer="adam", memory=counted)
    plans = ask(replace(job(), step=step), memory=None)
    # Parameters, gradients, two moments and their square root; on several GPUs the buckets.
    assert (
        of(plans, "small.1").reason
        == "does not fit in memory: needs 10.9 GiB of 9.2 on Small; not even one sample does,"
        " it would fit with --optimizer adam8bit"
    )
    assert of(plans, "big.1").memory_gib_needed == pytest.approx(10 + 0.8 + 1 / 16)
    sgd = ask(replace(job(), step=step), memory=None, settings=Settings(optimizer="sgd"))
    assert of(sgd, "small.1").memory_gib_needed == pytest.approx(6 + 0.8 + 1 / 16)
    assert of(sgd, "small.1", 2).memory_gib_needed == pytest.approx(8 + 0.8 + 1 / 16)
    sharded = ask(replace(job(), step=step), memory=None, settings=Settings(strategy="fsdp"))
    assert of(sharded, "small.4").fits_memory


def test_memory_that_is_not_known_is_said() -> None:
    plan = ask(memory=lambda *_: None)[0]
    assert (plan.fits_memory, plan.memory_gib_needed, plan.reason) == (None, None, "")
    assert "memory: not known, assumed to fit" in plan.basis


def test_a_retired_type_is_ranked_when_it_is_named() -> None:
    plans = ask(instance_types=["old.1", "small.1"])
    assert accepted(plans)[0] == ("old.1", 1)
    assert "machine: old.1 is retired" in plans[0].basis


def test_the_classes_add_up_and_the_largest_binds() -> None:
    plans = ask(budget_s=1e9)
    for plan in plans:
        if plan.step_s is not None:
            classes = (plan.compute_s, plan.data_s, plan.h2d_s, plan.interconnect_s, plan.network_s, plan.other_s)
            assert sum(value or 0.0 for value in classes) == pytest.approx(plan.step_s)
    assert of(plans, "small.1", 2).bound_by == "compute"
    assert of(plans, "big.1", 2).bound_by == "network"


def test_all_gpus_of_a_machine_are_used() -> None:
    plan = of(ask(), "small.4", 2)
    assert (plan.placement, plan.gpus, plan.global_batch) == ((4, 4), 8, 64)
    assert plan.usd_per_hour == 10.0


def test_start_up_is_paid_and_waited_for() -> None:
    plain, with_start = of(ask(), "big.1"), of(ask(startup_s=HOUR), "big.1")
    assert plain.time_high_s is not None
    assert plain.cost_usd is not None
    assert with_start.time_high_s == pytest.approx(plain.time_high_s + HOUR)
    assert with_start.cost_usd == pytest.approx(plain.cost_usd + 4.0)


def test_spot_is_a_plan_of_its_own() -> None:
    plans = ask(pricing=["on_demand", "spot"], interruptions={"spot": 0})
    assert (plans[0].instance_type, plans[0].pricing) == ("small.1", "spot")
    assert plans[0].cost_usd == pytest.approx(5.0)
    missing = [plan for plan in plans if plan.instance_type == "big.1" and plan.pricing == "spot"]
    assert [plan.reason for plan in missing] == ["no price: spot in us-east-1"]


def test_fractions_of_a_cent_decide_what_is_cheapest() -> None:
    types = ["small.1", "big.1"]
    prices = {"small.1": 1.0, "big.1": 4.99}  # 0.1 and 0.0998 USD; big.1 is extrapolated
    priced = [
        type(p)("aws", "us-east-1", name, "on_demand", prices[name]) for name in types for p in CATALOG.prices[:1]
    ]
    catalog = type(CATALOG)(CATALOG.instances, CATALOG.gpus, tuple(priced))
    plans = ask(catalog=catalog, instance_types=types, samples=3600, max_nodes=1)
    assert round(plans[0].cost_usd or 0, 2) == round(plans[1].cost_usd or 0, 2)
    assert accepted(plans) == [("big.1", 1), ("small.1", 1)]


def test_a_highest_cost() -> None:
    plans = ask(max_cost_usd=11.0)
    assert accepted(plans) == [("big.1", 1)]
    assert of(plans, "small.1").reason == "over the highest cost: up to 12.00 USD, limit 11.00 USD"


def test_the_global_batch_is_kept_by_accumulation_where_it_must() -> None:
    plans = ask(job(batch=4, placement=(4,)), keep_global_batch=True, max_nodes=3, budget_s=1e9)
    shapes = {(p.instance_type, p.nodes): (p.batch_per_gpu, p.grad_accum) for p in plans if not p.reason}
    assert shapes["small.1", 1] == (4, 4)
    assert shapes["small.1", 2] == (4, 2)
    assert shapes["small.4", 1] == (4, 1)
    assert shapes["small.4", 2] == (2, 1)
    assert {plan.global_batch for plan in plans if not plan.reason} == {16}
    assert of(plans, "small.1", 3).reason == "global batch not kept: 3 GPUs cannot share 16 samples"


def test_a_kept_global_batch_is_cut_smaller_where_memory_asks_for_it() -> None:
    plans = ask(job(batch=20), keep_global_batch=True, max_nodes=1)
    small, big = of(plans, "small.1"), of(plans, "big.1")
    assert (small.batch_per_gpu, small.grad_accum, small.fits_memory) == (5, 4, True)
    assert (big.batch_per_gpu, big.grad_accum) == (20, 1)


def test_bf16_needs_a_gpu_that_has_it() -> None:
    plans = ask(job(precision="amp-bf16"))
    assert of(plans, "small.1").reason == "no bf16: Small has none in hardware"
    assert accepted(plans)[0] == ("big.1", 1)


def test_what_the_predictor_refuses_is_rejected() -> None:
    plans = ask(cloud="gcp", max_nodes=3, budget_s=1e9)
    assert accepted(plans) == [("other.1", 1), ("other.1", 2)]
    assert plans[-1].reason == "not predictable: nothing is known of so many of them"
    assert plans[0].region == "us-central1"


def test_any_cloud_means_machines_of_all_each_in_its_reference_region() -> None:
    assert ("other.1", 1) not in accepted(ask())
    everywhere = ask(cloud="any")
    assert (everywhere[0].instance_type, everywhere[0].region) == ("other.1", "us-central1")
    assert set(accepted(ask())) < set(accepted(everywhere))
    named = ask(cloud="any", instance_types=["other.1", "small.1"])
    assert {plan.cloud for plan in named} == {"aws", "gcp"}


def test_a_region_tells_the_cloud() -> None:
    assert {plan.cloud for plan in ask(region="us-central1")} == {"gcp"}
    plans = ask(region="us-west-2")
    assert accepted(plans)[0] == ("small.1", 1)
    assert (plans[0].price_as_of, plans[0].price_basis) == ("", "parity")
    assert of(plans, "big.1").reason == "no price: on_demand in us-west-2"


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"budget_s": 0}, "the budget: a positive number is expected, not 0"),
        ({"budget_s": math.inf}, "the budget: a number that is not so large is expected, not inf"),
        ({"samples": -1}, "the number of samples: a positive number is expected, not -1"),
        ({"samples": 10**400},
         "the number of samples: a number that is not so large is expected, not a number that is too large"),
        ({"startup_s": -1}, "the time to start: a number of 0 or more is expected, not -1"),
        ({"max_cost_usd": math.nan}, "the highest cost: a positive number is expected, not nan"),
        ({"max_nodes": 0}, "the number of nodes: a whole number from 1 to 1000 is expected, not 0"),
        ({"max_nodes": 100_000}, "the number of nodes: a whole number from 1 to 1000 is expected, not 100000"),
        ({"min_nodes": 0}, "the least number of nodes: a whole number from 1 to 2 is expected, not 0"),
        ({"min_nodes": 3}, "the least number of nodes: a whole number from 1 to 2 is expected, not 3"),
        ({"max_nodes": 1000, "batch_per_gpu": tuple(range(1, 10))},
         "27,000 candidates (3 instance types on up to 1,000 nodes, with all batches and prices) are too many,"
         " at most 25,000 are ranked: name the types or take fewer nodes"),
        ({"pricing": "free"}, "unknown pricing 'free'; known: on_demand, spot"),
        ({"instance_types": ["big.1"], "region": "us-west-2"},
         "no price of big.1 in us-west-2; there is one in us-east-1"),
        ({"workload": Workload("none")}, "the batch per GPU is not known: give it (command line: --batch B)"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant(question: dict[str, Any], message: str) -> None:
    with pytest.raises(PredictionError) as raised:
        ask(**question)
    assert str(raised.value) == message


def test_unknown_names_are_told_with_the_closest() -> None:
    with pytest.raises(CatalogError, match=r"unknown instance type 'smal.1'; closest: small.1"):
        ask(instance_types=["smal.1"])
    with pytest.raises(CatalogError, match="region 'us-east-9'"):
        ask(region="us-east-9")
    with pytest.raises(CatalogError, match="unknown cloud 'nimbus'"):
        ask(cloud="nimbus")


def test_a_kept_global_batch_is_divided_without_trying_every_number() -> None:
    plan = of(ask(job(batch=2**29), keep_global_batch=True, max_nodes=1), "small.1")
    assert (plan.batch_per_gpu, plan.grad_accum) == (8, 2**26)


def test_only_the_numbers_of_nodes_asked_for_are_tried() -> None:
    predictor = MadeUp()
    plans = ask(min_nodes=3, max_nodes=4, predictor=predictor)
    assert {len(target.placement) for target in predictor.asked} == {3, 4}
    assert {plan.nodes for plan in plans if plan.times} == {3, 4}
    many = ask(min_nodes=1000, max_nodes=1000, batch_per_gpu=tuple(range(1, 10)))
    assert {plan.nodes for plan in many if plan.times} == {1000}


def test_what_is_asked_reaches_every_candidate_and_the_memory() -> None:
    predictor, seen = MadeUp(), set()

    def memory(workload: Workload, batch: int, precision: str, strategy: str, gpus: int) -> float | None:
        seen.add((precision, strategy))
        return None

    asked = Settings(precision="amp-fp16", strategy="fsdp", optimizer="adamw", grad_accum=2, compiled=False)
    plans = ask(settings=asked, predictor=predictor, memory=memory)
    assert seen == {("amp-fp16", "fsdp")}
    told = {(t.precision, t.strategy, t.optimizer, t.grad_accum, t.checkpointing, t.compiled) for t in predictor.asked}
    assert told == {("amp-fp16", "fsdp", "adamw", 2, None, False)}
    assert {plan.grad_accum for plan in plans} == {2}


def test_a_gpu_without_the_precision_asked_for_is_rejected() -> None:
    for precision in ("bf16", "tf32"):
        assert of(ask(settings=Settings(precision=precision)), "small.1").reason == (
            f"no {precision}: Small has none in hardware"
        )
    assert not of(ask(job(precision="tf32")), "small.1").reason.startswith("no tf32")


def test_settings_that_nobody_knows_are_refused() -> None:
    with pytest.raises(PredictionError, match="precision 'fp31' is not known; one of: fp32, tf32, bf16"):
        ask(settings=Settings(precision="fp31"))


def test_own_prices_and_discounts_change_costs_and_the_order() -> None:
    free = Price("gcp", "any", "other.1", "on_demand", 0.0, basis="own")
    plans = ask(prices=OwnPrices([free], {"big.1": 0.5}))
    assert plans[0].instance_type == "other.1"
    assert (plans[0].cost_usd, plans[0].price_basis) == (0.0, "own")
    assert plans[0].list_cost_usd == of(ask(cloud="gcp"), "other.1", plans[0].nodes).cost_usd
    big, before = of(plans, "big.1"), of(ask(), "big.1")
    assert big.cost_usd == pytest.approx(before.cost_usd / 2 if before.cost_usd else None)
    assert (big.price_basis, big.list_cost_usd) == ("read, less 50 %", before.cost_usd)
    assert before.list_cost_usd is None


points = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=30)


@given(points)
def test_a_point_is_on_the_front_unless_another_beats_it(made: list[tuple[int, int]]) -> None:
    def beaten(point: tuple[int, int]) -> bool:
        return any(x <= point[0] and y <= point[1] and (x, y) != point for x, y in made)

    front = [made[index] for index in pareto_front(made)]
    assert front == sorted({point for point in made if not beaten(point)})


@pytest.mark.parametrize(
    ("time_s", "cloud", "billed_s"),
    [
        (3600, "aws", 3600),
        (90.2, "aws", 91),
        (5, "aws", 60),
        (90.2, "azure", 120),
        (7200, "lambda", 7200),
        (601, "verda", 1200),
        (90.2, "runpod", 91),
    ],
)
def test_a_bill_is_rounded_up_as_the_cloud_does(time_s: float, cloud: str, billed_s: float) -> None:
    assert cost_usd(3.6, 2, time_s, cloud) == pytest.approx(2 * billed_s / 1000)
