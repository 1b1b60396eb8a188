"""Plans in words: what every form of an answer says alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlprof.base.units import duration, significant

if TYPE_CHECKING:
    from ddlprof.recommender.plans.plan import Plan


def where(plan: Plan) -> str:
    """`2 x g4dn.12xlarge`, `p3.8xlarge`, with `spot` where it is."""
    machines = plan.instance_type if plan.nodes == 1 else f"{plan.nodes} x {plan.instance_type}"
    return machines + (" (spot)" if plan.pricing == "spot" else "")


def described(plan: Plan) -> str:
    """The time and the cost of a plan, in a line."""
    time, most = duration(plan.time_s or 0.0), duration(plan.time_high_s or 0.0)
    listed = f" ({significant(plan.list_cost_usd)} at the list's price)" if plan.list_cost_usd else ""
    return f"{where(plan)}: {time} (up to {most}), {significant(plan.cost_usd or 0.0)} USD{listed}"


def time_unit(time_s: float) -> tuple[str, float]:
    """The unit in which `duration` would say this time, in words, and its seconds."""
    limits = ((7200, ("minutes", 60.0)), (4 * 86400, ("hours", 3600.0)))
    return next((unit for limit, unit in limits if time_s < limit), ("days", 86400.0))
