"""The plans of `ddlprof recommend` for programs: `recommendation.csv` and JSON, rejected candidates included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddlprof.report.csv_cells import csv_text
from ddlprof.report.lines import json_text
from recommender.estimate import CLASSES

if TYPE_CHECKING:
    from ddlprof.report.plans.text import Answer
    from recommender.plans.plan import Plan

COLUMNS = (
    "position", "cloud", "region", "instance_type", "nodes", "placement", "gpus", "gpu_model", "pricing",
    "batch_per_gpu", "global_batch", "steps", "step_s", "step_low_s", "step_high_s", "time_h", "time_low_h",
    "time_high_h", "cost_usd", "cost_low_usd", "cost_high_usd", *(f"{name}_s" for name in CLASSES), "bound_by",
    "memory_gib_needed", "fits_memory", "meets_budget", "extrapolated", "price_as_of", "reason",
    "price_basis", "list_cost_usd", "start_up_s", "epoch_start_s", "evaluation_s", "checkpoint_s",
)  # fmt: skip


def as_csv(plans: Sequence[Plan]) -> str:
    """One row a plan, with `COLUMNS`; an unknown value is an empty field, like the `position` of a rejected plan."""
    return csv_text(COLUMNS, _rows(plans))


def as_json(answer: Answer) -> str:
    """The question and the rows of the CSV, null for what is not known, each with `grad_accum` and `basis`.

    Where other settings than the job's own were asked for, `asked` has both and `as_measured` the best plan with those
    of the job.
    """
    as_measured = [] if isinstance(answer.as_measured, str) else [answer.as_measured]
    asked = {name: {"as_run": before, "asked": after} for name, (before, after) in answer.differences.items()}
    value = {
        "job": answer.job,
        "samples": answer.samples,
        "budget_s": answer.budget_s,
        "startup_s": answer.startup_s,
        "next_measurement": answer.advice,
        "rejected": dict(answer.rejections.most_common()),
        "plans": _full_rows(answer.plans),
        "asked": asked,
        "as_measured": next(iter(_full_rows(as_measured)), None),
    }
    return json_text(value)


def _full_rows(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    return [
        {**row, "grad_accum": plan.grad_accum, "basis": plan.basis}
        for row, plan in zip(_rows(plans), plans, strict=True)
    ]


def _rows(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    rows = []
    position = 0
    for plan in plans:
        values = plan.values()
        position += not plan.reason
        values["position"] = None if plan.reason else position
        for name in ("time", "time_low", "time_high"):
            seconds = values[f"{name}_s"]
            values[f"{name}_h"] = None if seconds is None else seconds / 3600
        rows.append({name: None if values[name] == "" else values[name] for name in COLUMNS})
    return rows
