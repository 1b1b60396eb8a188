"""Plans in words: what every form of an answer says alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlprof.base.units import duration, percent, significant
from ddlprof.recommender.compute.memory_fit import FITS, PERHAPS

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def memory_in_words(accepted: Sequence[Plan]) -> list[str]:
    """What is to be known where the best plan fits perhaps in memory, or a cheaper one does. `accepted`: best first."""
    best, lines = accepted[0], []
    if best.memory_verdict == PERHAPS:
        sure = next((plan for plan in accepted if plan.memory_verdict in (FITS, None)), None)
        after = f"the cheapest that fits: {described(sure)}" if sure else "none fits for sure"
        lines.append(f"the first {_perhaps(best)}; {after}")
    cheaper = min(
        (plan for plan in accepted if plan.memory_verdict == PERHAPS),
        key=lambda plan: plan.cost_usd or 0.0,
        default=best,
    )
    if cheaper is not best and (cheaper.cost_usd or 0.0) < (best.cost_usd or 0.0):
        lines.append(f"cheaper, but it {_perhaps(cheaper)}: {described(cheaper)}")
    return lines


def _perhaps(plan: Plan) -> str:
    would = f" and would with {' or '.join(plan.would_fit_with)}" if plan.would_fit_with else ""
    return f"{PERHAPS} in memory ({percent(plan.memory_fit_probability or 0.0)}){would}"


def time_unit(time_s: float) -> tuple[str, float]:
    """The unit in which `duration` would say this time, in words, and its seconds."""
    limits = ((7200, ("minutes", 60.0)), (4 * 86400, ("hours", 3600.0)))
    return next((unit for limit, unit in limits if time_s < limit), ("days", 86400.0))
