"""Interruptions in the time and cost of plans, beside simulations of the same jobs."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, quantiles
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.recommender import PredictionError
from ddlprof.recommender.estimate import Range
from ddlprof.recommender.plans.interruptions import (
    FAILURES_PER_GPU_HOUR,
    SPOT_PER_HOUR,
    Checkpoint,
    Stretch,
    assumed_checkpoint,
    best_interval_s,
    interrupted,
    rate_per_hour,
)
from ddlprof.recommender.workload import JobFacts, Recurring
from scripts.lab.interruptions import poisson, simulated_s
from tests.unit.recommender.made_up import job
from tests.unit.recommender.plans.test_ranking import HOUR, ask, of

SPOT: dict[str, Any] = {"pricing": "spot", "instance_types": ["small.1"]}


def exactly(seconds: float) -> Range:
    return Range(seconds, seconds, seconds)


def stretch(work_s: float, restart_s: float, save_s: float, step_s: float = 1.0) -> Stretch:
    return Stretch(exactly(work_s), exactly(restart_s), Checkpoint(exactly(save_s), measured=True), step_s)


@settings(max_examples=25, deadline=None)
@given(
    work_h=st.floats(1, 60),
    restart_s=st.floats(10, 1200),
    save_s=st.floats(0.5, 200),
    per_hour=st.floats(0.01, 1.5),
    seed=st.integers(0, 10**6),
)
def test_expected_time_is_that_of_simulations(
    work_h: float, restart_s: float, save_s: float, per_hour: float, seed: int
) -> None:
    made = stretch(work_h * HOUR, restart_s, save_s)
    found = interrupted(made, per_hour)
    assert found is not None
    seen = [
        simulated_s(work_h * HOUR, found.every_s, save_s, restart_s, poisson(per_hour / 3600, 1000 * seed + number))
        for number in range(200)
    ]
    assert found.time.mean_s == pytest.approx(fmean(seen), rel=0.1)
    tenths = quantiles(seen, n=10)
    assert found.time.low_s == pytest.approx(tenths[0], rel=0.1)
    assert found.time.high_s == pytest.approx(tenths[8], rel=0.15)
    assert found.time.mean_s == pytest.approx(work_h * HOUR + found.checkpoint_s + found.lost_s)


def test_the_interval_has_whole_steps_and_no_more_than_the_job() -> None:
    assert best_interval_s(stretch(10 * HOUR, 60, 10, step_s=7.0), 1 / HOUR) % 7 == pytest.approx(0, abs=1e-6)
    assert best_interval_s(stretch(10 * HOUR, 60, 10, step_s=900.0), 1 / HOUR) == 900
    assert best_interval_s(stretch(100, 60, 10), 1e-9) == 100
    assert best_interval_s(stretch(100, 60, 10), 0) == 100
    assert interrupted(stretch(100 * HOUR, 9000 * HOUR, 10), 1.0) is None


def test_uncertain_work_and_uncertain_interruptions_widen_the_interval() -> None:
    sure = interrupted(stretch(20 * HOUR, 300, 20), 0.5)
    unsure = interrupted(replace_work(stretch(20 * HOUR, 300, 20), Range(20 * HOUR, 15 * HOUR, 30 * HOUR)), 0.5)
    assert sure is not None
    assert unsure is not None
    assert sure.time.mean_s == pytest.approx(unsure.time.mean_s)
    assert unsure.time.high_s > sure.time.high_s > sure.time.mean_s > sure.time.low_s > unsure.time.low_s
    assert unsure.time.high_s > 1.5 * sure.time.mean_s


def replace_work(made: Stretch, work: Range) -> Stretch:
    return made._replace(work=work)


def test_rates() -> None:
    assert rate_per_hour({}, "a", "spot", 4, 32) == 4 * SPOT_PER_HOUR
    assert rate_per_hour({"a": 0.2, "spot": 0.3}, "a", "spot", 4, 32) == 0.8
    assert rate_per_hour({"a": 0.2, "spot": 0.3}, "b", "spot", 2, 32) == 0.6
    assert rate_per_hour({"spot": 0.3}, "b", "on_demand", 2, 16) == 16 * FAILURES_PER_GPU_HOUR
    assert rate_per_hour({"on_demand": 0.01}, "b", "on_demand", 2, 16) == 0.02
    # 419 failures in 54 days on 16,384 GPUs: one in three hours.
    assert pytest.approx(54 * 24 / 419) == 1 / (16_384 * FAILURES_PER_GPU_HOUR)


def test_an_assumed_checkpoint_grows_with_the_model_and_is_shared_among_writers() -> None:
    assert assumed_checkpoint(None).seconds.mean_s == 1
    assert assumed_checkpoint(1e9).seconds == Range(3, 1, 9)
    assert assumed_checkpoint(8e11, writers=16).seconds.mean_s == 150


def test_a_spot_plan_counts_checkpoints_and_interruptions() -> None:
    facts = JobFacts(start_up_s=120.0, checkpoint=Recurring(30.0, 1000))
    workload = replace(job(), job=facts)
    plan = of(ask(workload, **SPOT, interruptions={"small.1": 0.5}, startup_s=180.0), "small.1")
    never = of(ask(workload, **SPOT, interruptions={"spot": 0}, startup_s=180.0), "small.1")
    assert plan.interruptions_per_hour == 0.5
    assert plan.time_s is not None
    assert plan.checkpoint_every_s is not None
    assert plan.checkpoint_s is not None
    assert plan.interrupted_s is not None
    # Ten hours of work, with a checkpoint of 30 s every 11 minutes and 300 s to start again.
    assert plan.checkpoint_every_s == pytest.approx(640, abs=30)
    assert plan.time_s == pytest.approx(300 + 10 * HOUR + plan.checkpoint_s + plan.interrupted_s)
    assert plan.interruptions == pytest.approx(0.5 * (plan.time_s - 300) / HOUR)
    seen = [
        300 + simulated_s(10 * HOUR, plan.checkpoint_every_s, 30, 300, poisson(0.5 / 3600, seed)) for seed in range(400)
    ]
    assert plan.time_s == pytest.approx(fmean(seen), rel=0.02)
    assert plan.cost_usd == pytest.approx(0.5 * plan.time_s / HOUR, rel=1e-3)
    assert any("as often as you say" in line for line in plan.basis)
    assert never.interruptions is None
    assert never.checkpoint_s == pytest.approx(360 * 30)  # as often as in the run


def test_failures_of_few_machines_on_demand_are_left_out_and_of_many_counted() -> None:
    few = of(ask(instance_types=["small.1"]), "small.1")
    assert few.interruptions is few.interrupted_s is None
    many = of(ask(instance_types=["small.1"], samples=1e5 * HOUR * 10, budget_s=1e6 * HOUR), "small.1")
    assert many.interruptions == pytest.approx(1e5 * FAILURES_PER_GPU_HOUR, rel=0.05)
    assert any("Llama 3" in line for line in many.basis)


def test_a_job_that_is_interrupted_before_it_has_begun_is_no_plan() -> None:
    (plan, *_) = ask(**SPOT, interruptions={"spot": 3000}, startup_s=2 * HOUR)
    assert plan.rejection == "interrupted too often"
    assert plan.time_s is plan.cost_usd is None
    with pytest.raises(PredictionError, match="interruptions per hour of spot"):
        ask(**SPOT, interruptions={"spot": -1})
