"""What would change an answer: the nearest price, deadline and batch at which other machines are the cheapest.

All follow from plans that were predicted already.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlprof.recommender.plans.plan import OVER_BUDGET
from ddlprof.recommender.plans.shown import Offer, offer_of

if TYPE_CHECKING:
    from ddlprof.recommender.plans.plan import Plan


@dataclass(frozen=True)
class PriceFlip:
    """Another offer that would be the cheapest at another price."""

    plan: Plan
    """The cheapest plan with that offer."""
    less: float
    """The share by which the price of that offer would have to fall."""
    more: float
    """The share by which the price of the best plan's offer would have to rise instead."""


@dataclass(frozen=True)
class DeadlineFlip:
    """A time budget at which other machines are the cheapest."""

    plan: Plan | None
    """The cheapest plan then; None: there is none."""
    budget_s: float
    is_shorter: bool
    """Whether the budget must be less than `budget_s`; else that much is enough."""


@dataclass(frozen=True)
class BatchFlip:
    """A batch that was tried, with which other machines are the cheapest."""

    plan: Plan
    """The cheapest plan with that batch."""
    batch_per_gpu: int


def price_flip(accepted: Sequence[Plan]) -> PriceFlip | None:
    """The least fall of a price that makes other machines the cheapest; None where no other offer meets the budget.

    `accepted` has the cheapest plan first. The cost of a plan is proportional to the price.
    """
    if not accepted or not accepted[0].cost_usd:
        return None
    best = accepted[0]
    others = [plan for plan in accepted if offer_of(plan) != offer_of(best) and plan.cost_usd]
    if not others:
        return None
    other = min(others, key=lambda plan: plan.cost_usd or 0.0)
    ratio = (best.cost_usd or 0.0) / (other.cost_usd or 1.0)
    return PriceFlip(other, max(0.0, 1.0 - ratio), max(0.0, 1.0 / ratio - 1.0))


def deadline_flip(plans: Sequence[Plan], budget_s: float, max_cost_usd: float | None = None) -> DeadlineFlip | None:
    """The time budget nearest to this one, as a ratio, at which the cheapest machines are others.

    `plans` are all plans, the accepted ones first and by cost. None where no plan is accepted.
    """
    accepted = [plan for plan in plans if not plan.reason]
    if not accepted:
        return None
    flips = [_shorter(accepted), *_longer(accepted[0], plans, max_cost_usd)]
    return min(flips, key=lambda flip: abs(math.log(flip.budget_s / budget_s)))


def _shorter(accepted: Sequence[Plan]) -> DeadlineFlip:
    """The budget below which the cheapest machines no longer finish in time."""
    best = accepted[0]
    budget_s, plan = best.time_high_s or 0.0, _cheapest_below(accepted, best.time_high_s or 0.0)
    while plan is not None and _machines(plan) == _machines(best):  # with another batch
        budget_s = plan.time_high_s or 0.0
        plan = _cheapest_below(accepted, budget_s)
    return DeadlineFlip(plan, budget_s, is_shorter=True)


def _cheapest_below(accepted: Sequence[Plan], budget_s: float) -> Plan | None:
    return next((plan for plan in accepted if (plan.time_high_s or 0.0) < budget_s), None)


def _longer(best: Plan, plans: Sequence[Plan], max_cost_usd: float | None) -> Iterator[DeadlineFlip]:
    """The shortest longer budget that lets in cheaper machines, if any."""
    most_usd = math.inf if max_cost_usd is None else max_cost_usd
    late = [plan for plan in plans if plan.rejection == OVER_BUDGET and (plan.cost_high_usd or math.inf) <= most_usd]
    lowest_usd = best.cost_usd or 0.0
    for plan in sorted(late, key=lambda plan: (plan.time_high_s or 0.0, plan.cost_usd or 0.0)):
        if plan.cost_usd is None or plan.cost_usd >= lowest_usd:
            continue
        if _machines(plan) != _machines(best):
            yield DeadlineFlip(plan, plan.time_high_s or 0.0, is_shorter=False)
            return
        lowest_usd = plan.cost_usd


def batches_tried(accepted: Sequence[Plan]) -> list[int]:
    """The batches per GPU among which the answer was chosen; only that of the best plan where an update's samples are
    kept, since the batch then follows from the number of GPUs."""
    if not accepted:
        return []
    if len({plan.global_batch for plan in accepted}) == 1:
        return [accepted[0].batch_per_gpu]
    return sorted({plan.batch_per_gpu for plan in accepted})


def batch_flip(accepted: Sequence[Plan]) -> BatchFlip | None:
    """The batch nearest to the best plan's, of those tried, with which other machines are the cheapest."""
    if not accepted:
        return None
    best = accepted[0]
    for batch in sorted(batches_tried(accepted), key=lambda batch: abs(math.log(batch / best.batch_per_gpu))):
        plan = next(plan for plan in accepted if plan.batch_per_gpu == batch)
        if _machines(plan) != _machines(best):
            return BatchFlip(plan, batch)
    return None


def _machines(plan: Plan) -> tuple[Offer, int]:
    return offer_of(plan), plan.nodes
