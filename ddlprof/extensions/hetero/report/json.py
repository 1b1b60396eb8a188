"""A plan as JSON for programs, and as the file that `ddlprof.hetero.apply` reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ddlprof.extensions.hetero.check.run import CheckResult
from ddlprof.extensions.hetero.plan_file import PLAN_SCHEMA
from ddlprof.extensions.hetero.report.text import bound_by
from ddlprof.extensions.hetero.search import Planned, SplitPlan
from ddlprof.report.json_csv import json_text


def as_json(job: str, plan: SplitPlan, notes: Sequence[str], check: CheckResult | None = None) -> str:
    """Everything that the table shows, and more; seconds and bytes."""
    return json_text(
        {
            "job": job,
            "batch": plan.problem.batch,
            "devices": [asdict(device) for device in plan.problem.devices.all],
            "groups": [asdict(group) for group in plan.problem.groups],
            "plan": _values(plan, plan.best),
            "uniform": {each.name: _values(plan, each) for each in plan.uniform},
            "gain": plan.gain,
            "basis": list(notes),
            "check": None if check is None else check.values(),
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


def as_plan(job: str, plan: SplitPlan) -> str:
    """The part of the plan that a training needs: the samples of each rank, and the exchange of each gradient group."""
    problem, strategy = plan.problem, plan.best.strategy
    assert plan.best.step is not None
    devices = problem.devices
    return json_text(
        {
            "schema": PLAN_SCHEMA,
            "job": job,
            "step_s": plan.best.step.step_s,
            "ranks": [
                {
                    "device": devices.all[index].name,
                    "machine": devices.machines[devices.all[index].machine].name,
                    "samples": strategy.samples[index],
                }
                for index in strategy.used
            ],
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
