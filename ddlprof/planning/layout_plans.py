"""The best layouts of a transformer on machines to rent: what `ddlprof recommend --layouts auto` answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlprof.planning.job import DescribedJob
    from ddlprof.planning.question import PlanQuestion
    from ddlprof.recommender import Layout
    from ddlprof.report.plans.data import Answer

ALL = "auto"
"""The layouts that are searched."""


def layout_answer(
    job: DescribedJob,
    question: PlanQuestion,
    allows: Callable[[Layout], bool] | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Answer:
    """The plans with the best layout on each machine type and number of GPUs, and all layouts that were tried.

    `allows` tells which layouts may be tried. Raises UserError or PredictionError.
    """
    from datetime import date

    from ddlprof.recommender.plans.layouts import GPUS, MOST_NODES, recommend_layouts
    from ddlprof.recommender.plans.plan import STARTUP_S
    from ddlprof.recommender.plans.ranking import front_of
    from ddlprof.report.plans.data import Answer

    batch = question.global_batch or job.workload.global_batch
    if batch is None:
        raise UserError("layouts need the sequences of an update over all GPUs: give --global-batch N")
    found = recommend_layouts(
        job.workload,
        samples=question.samples,
        budget_s=question.budget_s,
        global_batch=batch,
        gpus=question.gpus or GPUS,
        nodes=question.nodes,
        max_nodes=question.max_nodes or MOST_NODES,
        region=question.region,
        pricing=question.pricing,
        instance_types=question.instance_types,
        cloud=question.cloud,
        max_cost_usd=question.max_cost_usd,
        settings=question.settings,
        prices=question.prices,
        interruptions=question.interruptions,
        others=job.others,
        learned=job.learned,
        allows=allows,
        advance=advance,
    )
    return Answer(
        job=job.workload.name,
        samples=question.samples,
        budget_s=question.budget_s,
        startup_s=STARTUP_S,
        plans=found.plans,
        front=front_of(found.plans),
        advice=None,
        today=date.today(),
        tried=found.tried,
    )
