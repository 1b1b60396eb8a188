"""What would change the answer of `ddlprof recommend`, in words: the nearest price, deadline and batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddlprof.base.units import duration, percent, significant
from ddlprof.recommender.plans.flips import batch_flip, batches_tried, deadline_flip, price_flip
from ddlprof.report.plans.words import where

if TYPE_CHECKING:
    from ddlprof.recommender.plans.plan import Plan
    from ddlprof.report.plans.data import Answer

_LEAST_SHARE = 0.01


def changes_of(answer: Answer) -> Iterator[tuple[str, str]]:
    """`Price`, `Deadline` and `Batch`, each with the nearest change of it that makes other machines the cheapest.

    One that cannot change the answer is left out; so are all where there is no answer.
    """
    changes = {"Price": _price(answer), "Deadline": _deadline(answer), "Batch": _batch(answer)}
    yield from ((name, text) for name, text in changes.items() if text)


def unchanged_in_words(answer: Answer) -> str:
    """Why a batch is not among the changes; empty where it is, or where there is no answer."""
    tried = batches_tried(answer.accepted)
    if not tried or batch_flip(answer.accepted):
        return ""
    if len(tried) == 1:
        return f"only one was tried ({tried[0]:,} per GPU); --batch B,... tries others"
    return f"the same machines with each that was tried: {', '.join(map(str, tried))} per GPU"


def _price(answer: Answer) -> str:
    flip = price_flip(answer.accepted)
    if flip is None:
        return ""
    best, other = answer.accepted[0], flip.plan
    return (
        f"{where(other)} would be the cheapest at a price {_share(flip.less)} lower, or if {_offer(best)} cost"
        f" {_share(flip.more)} more"
    )


def _share(share: float) -> str:
    return percent(share) if share >= _LEAST_SHARE else f"less than {percent(_LEAST_SHARE)}"


def _offer(plan: Plan) -> str:
    return plan.instance_type + (" (spot)" if plan.pricing == "spot" else "")


def _deadline(answer: Answer) -> str:
    flip = deadline_flip(answer.plans, answer.budget_s, answer.max_cost_usd)
    if flip is None:
        return ""
    then, now = duration(flip.budget_s), duration(answer.budget_s)
    budget = f"less than {then}" if flip.is_shorter else then
    return f"with {budget} instead of {now} {_cheapest(flip.plan)}"


def _batch(answer: Answer) -> str:
    flip = batch_flip(answer.accepted)
    if flip is None:
        return ""
    return f"with {flip.batch_per_gpu:,} samples per GPU instead of {answer.accepted[0].batch_per_gpu:,} " + _cheapest(
        flip.plan
    )


def _cheapest(plan: Plan | None) -> str:
    """The clause that says which plan is then the cheapest."""
    if plan is None:
        return "no plan that was tried would be in time"
    return f"{where(plan)} would be the cheapest, at {significant(plan.cost_usd or 0.0)} USD"
