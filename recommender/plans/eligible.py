"""The question of a recommendation, checked, the machines that it is about, and the order of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from ddlprof.base.reading import Interval, ReadingError, decode
from ddlprof.instance_catalog import Catalog, InstanceType
from ddlprof.instance_catalog.records import PRICINGS
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.plans.candidates import TrainingSetup, unusable
from ddlprof.recommender.plans.interruptions import check_rates
from ddlprof.recommender.plans.plan import OVER_BUDGET, OVER_COST, Limits, Plan
from ddlprof.recommender.workload import Amount, Speed

MAX_NODES = 1000
_EQUAL_DIGITS = 6
"""Costs that agree in this many digits count as equal: the difference is rounding."""
_NEARLY = (OVER_BUDGET, OVER_COST)
"""Rejections of machines that can run the job; they are ranked before those that cannot."""


def choose_machines(
    job: TrainingSetup, catalog: Catalog, names: Sequence[str] | None, located: Sequence[tuple[InstanceType, str]]
) -> list[tuple[InstanceType, str, str | None]]:
    """The types with their regions, each with the reason why no number of them can run the job; None if they may."""
    owned = {(price.cloud, price.instance_type) for price in catalog.prices if price.own}
    chosen = []
    for instance, where in located:
        named = names is not None or (instance.cloud, instance.instance_type) in owned
        chosen.append((instance, where, unusable(instance, catalog.gpu(instance.gpu_model), job, named)))
    return chosen


def check_question(limits: Limits, pricing: str | Sequence[str], most_nodes: int = MAX_NODES) -> tuple[str, ...]:
    """The ways to pay, without duplicates. Raises PredictionError for impossible arguments."""
    pricings = tuple(dict.fromkeys([pricing] if isinstance(pricing, str) else pricing))
    for name in pricings:
        if name not in PRICINGS:
            raise PredictionError(f"unknown pricing {name!r}; known: {', '.join(PRICINGS)}")
    if not pricings:
        raise PredictionError(f"no pricing is named; known: {', '.join(PRICINGS)}")
    asked: list[tuple[str, Any, object]] = [
        ("the number of samples", Speed, limits.samples),
        ("the budget", Speed, limits.budget_s),
        ("the number of nodes", Annotated[int, Interval(1, most_nodes)], limits.max_nodes),
        ("the least number of nodes", Annotated[int, Interval(1, limits.max_nodes)], limits.min_nodes),
        ("the highest cost", Speed | None, limits.max_cost_usd),
        ("the time to start", Amount, limits.startup_s),
    ]
    check_rates(limits.interruptions)
    try:
        for what, kind, value in asked:
            decode(kind, value, what)
    except ReadingError as error:
        raise PredictionError(str(error)) from None
    return pricings


def order(plan: Plan) -> tuple[object, ...]:
    """The sort key of a plan. Accepted plans come by cost, then by risk, those that rather do not fit in memory last;
    rejected ones by kind of rejection, then by time."""
    where = (plan.cloud, plan.instance_type, plan.nodes, plan.batch_per_gpu, plan.pricing)
    if not plan.reason and plan.cost_usd is not None:
        cost_usd = float(f"{plan.cost_usd:.{_EQUAL_DIGITS}g}")
        unlikely = plan.memory_fit_probability is not None and plan.memory_fit_probability < 0.5
        return (-1, unlikely, cost_usd, plan.pricing == "spot", bool(plan.extrapolated), plan.time_high_s, *where)
    kind = _NEARLY.index(plan.rejection) if plan.rejection in _NEARLY else len(_NEARLY)
    return (kind, False, math.inf if plan.time_high_s is None else plan.time_high_s, *where)
