"""The best layouts of a transformer on machines to rent: what `ddlprof recommend --layouts auto` answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import UserError

if TYPE_CHECKING:
    from ddlprof.planning.job import DescribedJob
    from ddlprof.recommender import Settings
    from ddlprof.report.plans.data import Answer

ALL = "auto"
"""The layouts that are searched."""


def layout_answer(
    job: DescribedJob,
    *,
    samples: float,
    budget_s: float,
    global_batch: int | None,
    gpus: Sequence[int] = (),
    settings: Settings,
    **question: Any,
) -> Answer:
    """The plans with the best layout on each machine type and number of GPUs, and all layouts that were tried.

    `gpus` are the numbers of GPUs to try (none: `ddlprof.recommender.plans.layouts.GPUS`); the other
    arguments are those of `recommend_layouts`. Raises UserError or PredictionError.
    """
    from datetime import date

    from ddlprof.recommender.plans.layouts import GPUS, recommend_layouts
    from ddlprof.recommender.plans.plan import STARTUP_S
    from ddlprof.recommender.plans.ranking import front_of
    from ddlprof.report.plans.data import Answer

    batch = global_batch or job.workload.global_batch
    if batch is None:
        raise UserError("layouts need the sequences of an update over all GPUs: give --global-batch N")
    found = recommend_layouts(
        job.workload, samples=samples, budget_s=budget_s, global_batch=batch, gpus=gpus or GPUS,
        settings=settings, others=job.others, learned=job.learned, **question,
    )  # fmt: skip
    return Answer(
        job=job.workload.name,
        samples=samples,
        budget_s=budget_s,
        startup_s=STARTUP_S,
        plans=found.plans,
        front=front_of(found.plans),
        advice=None,
        today=date.today(),
        tried=found.tried,
    )
