"""The answer of `ddlprof recommend`: ranked plans, and their rows for programs, rejected candidates included.

The recommender has ranked the plans already. The CSV file and the JSON have the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

from ddlprof.recommender.plans.shown import knee_of, rows_of
from ddlprof.report.json_csv import csv_text, json_text
from ddlprof.report.plans.columns import PLAN_COLUMNS

if TYPE_CHECKING:
    from ddlprof.recommender.plans.layouts import TriedOn
    from ddlprof.recommender.plans.plan import Plan
    from ddlprof.recommender.plans.shown import ShownPlan

COLUMNS = tuple(PLAN_COLUMNS)
_SETTINGS = {
    "grad_accum": "accumulation", "compiled": "torch.compile", "channels_last": "channels last",
    "lora": "LoRA of rank", "qlora": "QLoRA of rank",
    "lora_targets": "adapters on", "lora_precision": "adapters in", "qlora_format": "weights packed as",
    "lora_dropout": "dropout before adapters",
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """The ranked plans and the question. `front` holds the accepted plans of the Pareto front, fastest first."""

    job: str
    samples: float
    budget_s: float
    startup_s: float
    plans: Sequence[Plan]
    front: Sequence[Plan]
    advice: str | None
    """The one further measurement that would help most; None: not known."""
    today: date
    differences: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """The settings that replace the job's own, by name: the job's value (None: not known) and the value asked for."""
    as_measured: Plan | str = ""
    """The best plan with the job's own settings, where others were asked for, or why there is none."""
    tried: Sequence[TriedOn] = ()
    """All layouts that were tried, where the best were asked for."""
    carbon_g_per_kwh: float | None = None
    """The CO2 of a kWh where the machines are, if the user told it."""

    max_cost_usd: float | None = None
    """The most that the job may cost, if the user told it."""

    def rows(self, top: int, *, all_sizes: bool = False) -> list[ShownPlan]:
        """The plans to show: see `ddlprof.recommender.plans.shown.rows_of`."""
        return rows_of(self.accepted, knee_of(self.front), top, all_sizes=all_sizes)

    @property
    def accepted(self) -> list[Plan]:
        """The accepted plans, best first."""
        return [plan for plan in self.plans if not plan.reason]

    @property
    def rejections(self) -> Counter[str]:
        """How often each reason was given."""
        return Counter(plan.rejection for plan in self.plans if plan.reason)


def as_csv(plans: Sequence[Plan]) -> str:
    """One row a plan, with `COLUMNS`; an unknown value is an empty field, like the `position` of a rejected plan."""
    return csv_text(COLUMNS, (row.values() for row in _rows(plans)))


def as_json(answer: Answer) -> str:
    """The question and the rows of the CSV, null for what is not known, each with `grad_accum`, `basis`, `dimensions`.

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
    if answer.tried:
        reasons = Counter(each.tried.reason.partition(":")[0] or "predicted" for each in answer.tried)
        value["layouts_tried"] = dict(reasons.most_common())
    return json_text(value)


def _full_rows(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    return [
        {**row, "grad_accum": plan.grad_accum, "basis": plan.basis, "dimensions": plan.dimensions}
        for row, plan in zip(_rows(plans), plans, strict=True)
    ]


def _rows(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    rows = []
    position = 0
    for plan in plans:
        values = plan.values()
        position += not plan.reason
        values["position"] = None if plan.reason else position
        values["would_fit_with"] = "; ".join(plan.would_fit_with)
        for name in ("time", "time_low", "time_high"):
            seconds = values[f"{name}_s"]
            values[f"{name}_h"] = None if seconds is None else seconds / 3600
        rows.append({name: None if values[name] == "" else values[name] for name in COLUMNS})
    return rows


def settings_in_words(differences: Mapping[str, tuple[Any, Any]]) -> str:
    """`precision bf16 (in RUN: fp32), LoRA of rank 8`: without what is not known of RUN, or is not in it."""
    return ", ".join(
        f"{_SETTINGS.get(name, name)} {_setting(asked)}" + ("" if before is None else f" (in RUN: {_setting(before)})")
        for name, (before, asked) in differences.items()
    )


def asked_in_words(differences: Mapping[str, tuple[Any, Any]]) -> str:
    """`precision bf16, checkpointing yes`."""
    return ", ".join(f"{_SETTINGS.get(name, name)} {_setting(asked)}" for name, (_, asked) in differences.items())


def _setting(value: Any) -> str:
    if value is None:
        return "not known"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
