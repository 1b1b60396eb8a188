"""The plans that an answer shows: each offer at its best size, and what must always be seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddlprof.recommender.plans.plan import Plan

Offer = tuple[str, str, str, str]


def offer_of(plan: Plan) -> Offer:
    """What has one price: the machines' cloud, region and type, and the way to pay."""
    return plan.cloud, plan.region, plan.instance_type, plan.pricing


@dataclass(frozen=True)
class ShownPlan:
    """A plan to show."""

    position: int
    """Its place among all accepted plans, from 1."""
    plan: Plan
    folded: int
    """How many accepted plans with the same machines and way to pay follow and are not shown: other numbers of
    machines, or other batches."""
    is_fastest: bool
    is_knee: bool


def rows_of(accepted: Sequence[Plan], knee: Plan | None, top: int, *, all_sizes: bool = False) -> list[ShownPlan]:
    """The `top` best plans of different offers, with `all_sizes` of all plans, and always the fastest and the knee.

    `accepted` has the best plan first. The rows keep this order.
    """
    fastest = fastest_of(accepted)
    best = range(len(accepted)) if all_sizes else _first_of_each([offer_of(plan) for plan in accepted])
    always = {number for number, plan in enumerate(accepted) if plan is fastest or plan is knee}
    numbers = sorted({*best[:top], *always})
    sizes = Counter(offer_of(plan) for plan in accepted)
    shown = Counter(offer_of(accepted[number]) for number in numbers)
    rows = []
    for number in numbers:
        plan, offer = accepted[number], offer_of(accepted[number])
        folded = 0 if all_sizes else sizes.pop(offer, shown[offer]) - shown[offer]
        rows.append(ShownPlan(number + 1, plan, folded, plan is fastest, plan is knee))
    return rows


def fastest_of(accepted: Sequence[Plan]) -> Plan | None:
    """The plan with the shortest expected time; None where there is no plan."""
    return min(accepted, key=lambda plan: plan.time_s or 0.0, default=None)


def _first_of_each(offers: Sequence[Offer]) -> list[int]:
    first: dict[Offer, int] = {}
    for number, offer in enumerate(offers):
        first.setdefault(offer, number)
    return list(first.values())


def knee_of(front: Sequence[Plan]) -> Plan | None:
    """The knee of a Pareto front of plans, the fastest first; None where there is none. Plans without a cost are left
    out."""
    priced = [plan for plan in front if plan.time_s and plan.cost_usd]
    number = knee([(plan.time_s or 0.0, plan.cost_usd or 0.0) for plan in priced])
    return None if number is None else priced[number]


def knee(front: Sequence[tuple[float, float]]) -> int | None:
    """The point of a front from which both ways to go on are poor: a little faster costs much, a little cheaper takes
    much longer.

    It is the point that is farthest below the straight line between the ends, with the logarithms of both coordinates
    taken from 0 at the lower end to 1 at the upper one. Only points count that win at least the factor in the first
    that they cost in the second, against the cheapest end: 2 % less time for 73 times the cost is no balance. None
    where no such point is below the line. `front` is in order of the first coordinate, both are positive, and the
    second falls.
    """
    if len(front) < 3:
        return None
    (least, highest), (most, lowest) = front[0], front[-1]
    if not (least < most and lowest < highest):
        return None
    below = [
        1.0 - _share(x, least, most) - _share(y, lowest, highest) if most / x >= y / lowest else 0.0 for x, y in front
    ]
    number = max(range(len(front)), key=lambda each: below[each])
    return number if below[number] > 1e-9 else None


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)
