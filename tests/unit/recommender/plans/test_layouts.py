"""Plans with the best layout on each machine type and number of GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddlprof.recommender import PredictionError, Settings, Target
from ddlprof.recommender.layout import Layout, parse_layout
from ddlprof.recommender.plans.layouts import GPUS, LayoutPlans, recommend_layouts
from tests.unit.recommender.made_up_layouts import JOB, MadeUpLayouts, gib_of


def memory(layout: Layout, gpus: int, size: int, count: int) -> tuple[float, float]:
    gib = gib_of(Target(gpu_model="H100", placement=(8,) * (gpus // 8), batch_per_gpu=size, layout=layout))
    return gib, gib


def ask(**question: Any) -> LayoutPlans:
    asked = {
        "samples": 1e6, "budget_s": 30 * 86400.0, "global_batch": 4096, "predictor": MadeUpLayouts(), "memory": memory,
        "instance_types": ["p5.48xlarge", "p4d.24xlarge"], **question,
    }  # fmt: skip
    return recommend_layouts(asked.pop("workload", JOB), **asked)


def test_a_plan_has_the_best_layout_of_its_machines() -> None:
    answer = ask(gpus=(64, 128))
    assert {(plan.instance_type, plan.gpus) for plan in answer.plans} == {
        (name, gpus) for name in ("p5.48xlarge", "p4d.24xlarge") for gpus in (64, 128)
    }
    for plan in answer.plans:
        steps = [
            each.tried.estimate.step_s
            for each in answer.tried
            if each.tried.estimate and (each.instance.instance_type, each.nodes) == (plan.instance_type, plan.nodes)
        ]
        assert plan.step_s == min(steps)
        assert plan.layout is not None
        assert plan.global_batch == 4096
        assert plan.gpus // parse_layout(plan.layout).layout.model_ranks * plan.batch_per_gpu * plan.grad_accum == 4096
        assert plan.steps == 245
        assert plan.mfu is not None
        assert plan.dimensions is not None
        assert plan.times is not None
        assert plan.times.bubble_s >= 0
        assert plan.tokens_per_s == pytest.approx(4096 * 4096 / plan.step_s)


def test_plans_are_ranked_as_others_are() -> None:
    plans = ask().plans
    accepted = [plan for plan in plans if not plan.reason]
    assert len(accepted) == 2 * len(GPUS)
    costs = [plan.cost_usd or 0.0 for plan in accepted]
    assert costs == sorted(costs)
    slow = ask(samples=1e9, budget_s=3600.0).plans
    assert {plan.rejection for plan in slow} == {"over budget"}


def test_machines_that_are_left_out_say_why() -> None:
    plans = ask(instance_types=None, cloud="gcp", gpus=(64,)).plans
    reasons = {plan.instance_type: plan.reason for plan in plans}
    assert reasons["a2-highgpu-8g"] == "smaller machine: a2-megagpu-16g has 16 of these GPUs"
    assert next(reason for reason in reasons.values() if reason.startswith("no NVLink"))
    assert reasons["a2-megagpu-16g"] == ""
    assert reasons["a3-megagpu-8g"] == "no price: on_demand in us-central1"


def test_nothing_fits() -> None:
    (plan,) = ask(instance_types=["p5.48xlarge"], gpus=(64,), memory=lambda *_: (1000.0, 1000.0)).plans
    assert plan.reason.startswith("does not fit in memory: of ")
    assert "the smallest needs 1000 GiB of" in plan.reason
    assert (plan.layout, plan.step_s) == (None, None)


def test_no_layout_has_the_batch() -> None:
    (plan,) = ask(instance_types=["p5.48xlarge"], gpus=(4096,), global_batch=3).plans
    assert plan.reason.startswith("no layout: all ")
    assert "by 'global batch'" in plan.reason


def test_bf16_is_usual_and_others_can_be_asked_for() -> None:
    predictor = MadeUpLayouts()
    ask(gpus=(64,), predictor=predictor)
    assert {target.precision for target in predictor.asked} == {"bf16"}
    predictor = MadeUpLayouts()
    ask(gpus=(64,), predictor=predictor, settings=Settings(precision="fp8"), instance_types=["p5.48xlarge"])
    assert {target.precision for target in predictor.asked} == {"fp8"}
    (plan,) = ask(gpus=(64,), instance_types=["p3dn.24xlarge"]).plans
    assert plan.reason.startswith("no bf16")


def test_bad_questions() -> None:
    with pytest.raises(PredictionError, match="layouts need the sizes of a transformer"):
        ask(workload=replace(JOB, transformer=None))
    with pytest.raises(PredictionError, match="numbers of GPUs and a global batch above 0"):
        ask(gpus=())
    with pytest.raises(PredictionError, match="the budget"):
        ask(budget_s=-1.0)
