"""A plan as JSON for programs, and as the file that `ddlprof.hetero.apply` reads."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ddlprof.extensions.hetero.plan_file import SCHEMA_OF_SPLITS
from ddlprof.extensions.hetero.report import stages
from ddlprof.extensions.hetero.report.text import EQUAL, bound_by
from ddlprof.extensions.hetero.search import Planned, SplitPlan
from ddlprof.extensions.hetero.unequal_plan import UnequalPlan
from ddlprof.report.json_csv import json_text


def as_json(found: UnequalPlan) -> str:
    """Everything that the table shows, and more; seconds and bytes.

    `plan` is the faster one of `split`, which divides the batch alone, and `stages`, which divides the layers.
    """
    problem, split, staged = found.problem, found.split, found.staged
    of_split = _values(split, split.best) if split else None
    of_stages = stages.values(staged.problem, staged.best) if staged else None
    uniform = {each.name: _values(split, each) for each in split.uniform} if split else {}
    if staged is not None and staged.uniform is not None:
        uniform[EQUAL] = stages.values(staged.problem, staged.uniform)
    return json_text(
        {
            "job": found.job,
            "batch": problem.batch,
            "devices": [asdict(device) for device in problem.devices.all],
            "groups": [asdict(group) for group in problem.groups],
            "plan": of_stages if found.stages else of_split,
            "split": of_split,
            "stages": of_stages,
            "uniform": uniform,
            "gain": found.gain,
            "basis": found.notes,
        }
    )


def _values(plan: SplitPlan, planned: Planned) -> dict[str, Any]:
    step, strategy = planned.step, planned.strategy
    values: dict[str, Any] = {
        "samples": strategy.samples,
        "servers": strategy.servers,
        "by_rank": strategy.by_rank,
        "fits_memory": step is not None,
    }
    if step is None:
        return values
    return values | {
        "step_s": step.step_s,
        "samples_per_s": plan.problem.batch / step.step_s,
        "compute_s": step.compute_s,
        "exposed_comm_s": step.exposed_s,
        "idle_s": step.idle_s,
        "order": step.order,
        "bound_by": bound_by(plan.problem, step),
    }


def as_plan(found: UnequalPlan) -> str:
    """The part of the plan that a training needs."""
    if found.stages is not None:
        return stages.as_plan(found.job, found.stages)
    assert found.split is not None
    return _split_plan(found.job, found.split)


def _split_plan(job: str, plan: SplitPlan) -> str:
    """The samples of each rank, and the exchange of each gradient group."""
    problem, strategy = plan.problem, plan.best.strategy
    assert plan.best.step is not None
    return json_text(
        {
            "schema": SCHEMA_OF_SPLITS,
            "job": job,
            "step_s": plan.best.step.step_s,
            "ranks": problem.devices.shares((index, strategy.samples[index]) for index in strategy.used),
            "groups": [
                {
                    "layers": group.name,
                    "gradient_bytes": group.gradient_bytes,
                    "server_rank": None if server is None else strategy.used.index(server),
                }
                for group, server in zip(problem.groups, strategy.servers, strict=True)
            ],
        }
    )
