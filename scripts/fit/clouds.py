"""How often the cheapest plan changes if all clouds may be rented instead of one.

Published jobs (PROFET's and Pollux's, each at its largest batch), of which the user has measured one T4, over budgets
from just above the fastest plan of all clouds to twice the time of one T4. List prices on demand, whole machines, up
to 8 of them. Shares are means over the models. Prices of a market count in the row that says so only. Prints Markdown
for docs/recommend.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from ddlprof.instance_catalog import load
from ddlprof.instance_catalog.records import MARKET_PRICE
from ddlprof.recommender.plans.plan import Plan
from ddlprof.recommender.plans.ranking import recommend
from scripts.bench.jobs import print_table, progress
from scripts.fit.regret import DATA, Case, pollux_cases, profet_cases

BUDGETS = 16
EVER_S = 1e9
"""A budget that every plan meets."""
EVERY_CLOUD = "all but markets"


class Answer(NamedTuple):
    """The cheapest plan of one cloud, and of all, for one job and budget."""

    model: str
    one: Plan | None
    """None: no machine of the cloud meets the budget."""
    all: Plan


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--without", default="", help="clouds to leave out, with commas")
    asked = parser.parse_args()
    left_out = asked.without.split(",")
    cases = largest_batches([*profet_cases(asked.data), *pollux_cases(asked.data, [], None)])
    plans = {}
    for number, case in enumerate(cases, 1):
        progress(f"{number} of {len(cases)}: {case.model}")
        plans[case.model] = [plan for plan in plans_of(case) if plan.cloud not in left_out]
    clouds = [cloud for cloud in load(None).clouds() if cloud not in left_out]
    rows = [row_of(cloud, answers(plans, cloud)) for cloud in (*clouds, EVERY_CLOUD)]
    print_table(["rented from", "budgets met", "cheapest plan changes", "median saving then"], rows)
    winners: Counter[str] = Counter(answer.all.cloud for answer in answers(plans, EVERY_CLOUD))
    print_table(
        ["cheapest of all with the market", "budgets"],
        [[cloud, f"{number / winners.total():.0%}"] for cloud, number in winners.most_common()],
    )
    return 0


def largest_batches(cases: Iterable[Case]) -> list[Case]:
    """One case of each model: the largest batch on the largest images, the last one in the order of the sources."""
    return list({case.model: case for case in sorted(cases, key=lambda case: case.batch_per_gpu)}.values())


def plans_of(case: Case) -> list[Plan]:
    """All plans of all clouds that can be predicted and paid."""
    plans = recommend(
        case.workload, samples=case.samples(), budget_s=EVER_S, cloud="any", batch_per_gpu=case.batch_per_gpu,
        catalog=load(None),
    )  # fmt: skip
    return [plan for plan in plans if not plan.reason]


def answers(plans: dict[str, list[Plan]], cloud: str) -> list[Answer]:
    """What the cloud answers beside all clouds: without their markets, but for the cloud of one and all of them."""
    found = []
    for model, of_all in plans.items():
        fixed = [plan for plan in of_all if plan.price_basis != MARKET_PRICE]
        mine = fixed if cloud == EVERY_CLOUD else [plan for plan in of_all if plan.cloud == cloud]
        theirs = of_all if cloud == EVERY_CLOUD else list({id(plan): plan for plan in [*fixed, *mine]}.values())
        for budget_s in budgets_s(of_all):
            best = cheapest(theirs, budget_s)
            if best is not None:
                found.append(Answer(model, cheapest(mine, budget_s), best))
    return found


def budgets_s(plans: Sequence[Plan]) -> list[float]:
    """Budgets on equal steps of the logarithm."""
    fastest_s = min(upper_s(plan) for plan in plans)
    one_t4_s = next(upper_s(plan) for plan in plans if (plan.instance_type, plan.nodes) == ("g4dn.xlarge", 1))
    low_s, high_s = 1.02 * fastest_s, 2 * one_t4_s
    return [low_s * (high_s / low_s) ** (step / (BUDGETS - 1)) for step in range(BUDGETS)]


def upper_s(plan: Plan) -> float:
    """The upper end of the time, by which plans are accepted."""
    assert plan.time_high_s is not None
    return plan.time_high_s


def cost_usd(plan: Plan) -> float:
    """The expected cost, by which plans are ranked."""
    assert plan.cost_usd is not None
    return plan.cost_usd


def cheapest(plans: Iterable[Plan], budget_s: float) -> Plan | None:
    """The cheapest of the plans that meet the budget, or None."""
    return min((plan for plan in plans if upper_s(plan) <= budget_s), key=cost_usd, default=None)


def saving(answer: Answer) -> float:
    """The share of the cost that is saved if all clouds may be rented; 0 where the one cloud has no plan."""
    return 0.0 if answer.one is None else 1 - cost_usd(answer.all) / cost_usd(answer.one)


def row_of(cloud: str, found: Sequence[Answer]) -> list[object]:
    """The shares of one cloud, as means over the models, and the median of the savings."""
    by_model: dict[str, list[Answer]] = defaultdict(list)
    for answer in found:
        by_model[answer.model].append(answer)
    met = {model: [a for a in of if a.one is not None] for model, of in by_model.items()}
    savings = [saving(answer) for answer in found if saving(answer) > 0]
    changes = [fmean(saving(answer) > 0 for answer in of) for of in met.values() if of]
    return [
        cloud,
        f"{fmean(len(met[model]) / len(of) for model, of in by_model.items()):.0%}",
        f"{fmean(changes):.0%}" if changes else "",
        f"{median(savings):.0%}" if savings else "",
    ]


if __name__ == "__main__":
    sys.exit(main())
