"""The part of the page of a recommendation that is about layouts: the best on each machine, where their time goes, and
time against cost of all that were predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddlprof.base.units import Scale, count, duration, percent, scale_for, significant
from ddlprof.recommender.plans.ranking import pareto_front
from ddlprof.report.html.chart import chart, rounded, short, stacks
from ddlprof.report.html.element import Content, Html, table
from ddlprof.report.html.shell import Absent, Section
from ddlprof.report.plans.tried import time_and_cost
from ddlprof.report.plans.words import time_unit, where

if TYPE_CHECKING:
    from ddlprof.recommender.plans.layouts import TriedOn
    from ddlprof.recommender.plans.plan import Plan
    from ddlprof.report.plans.data import Answer

_ROWS = 100
_POINTS = 1500
"""The most layouts that are drawn besides the front."""
_SHOWN = {
    "compute": "compute", "bubble": "bubble", "tensor": "series-1", "pipeline": "series-2", "context": "series-3",
    "expert": "series-5", "data parallel": "series-4", "other": "other",
}  # fmt: skip
"""The parts of a step under a layout, each with its colour: that of a class for what is one. `data` alone is a class,
which waits for batches."""


def layout_sections(answer: Answer, top: int) -> list[Section | Absent]:
    """The sections; none where no layouts were searched."""
    if not answer.tried:
        return []
    plans = [plan for plan in answer.plans if plan.layout]
    return [_best(plans), _step(plans[:top]), _time_against_cost(answer)]


def _best(plans: Sequence[Plan]) -> Section | Absent:
    title = "The best layout on each machine"
    if not plans:
        return Absent(title, "no layout fits on any machine")
    any_rejected = any(plan.rejection for plan in plans[:_ROWS])
    rows: list[list[Content]] = [
        [
            where(plan), plan.layout or "", duration(plan.time_s or 0.0), significant(plan.cost_usd or 0.0),
            f"{plan.gpus:,}", str(plan.batch_per_gpu), f"{plan.grad_accum:,}",
            scale_for(plan.step_s or 0.0).time(plan.step_s or 0.0),
            "" if plan.mfu is None else percent(plan.mfu),
            significant((plan.tokens_per_s or 0.0) / plan.gpus),
            "" if plan.memory_gib_needed is None else f"{plan.memory_gib_needed:.0f}", *[plan.rejection] * any_rejected,
        ]
        for plan in plans[:_ROWS]
    ]  # fmt: skip
    head = [
        "Machines", "Layout", "Time", "USD", "GPUs", "Micro-batch", "Accumulated", "Step", "MFU", "Tokens/s of a GPU",
        "Memory GiB", *["Rejected"] * any_rejected,
    ]  # fmt: skip
    more = f", the first {_ROWS} of {len(plans):,}" if len(plans) > _ROWS else ""
    return Section("layouts", title, table(f"In the order of the plans{more}", head, rows, left={0, 1, 11}))


def _step(plans: Sequence[Plan]) -> Section | Absent:
    """The step of each by what takes it: computation, the bubble, and each dimension's communication."""
    title = "Where the time of the best layouts goes"
    if not plans:
        return Absent(title, "no layout fits on any machine")
    scale = scale_for(min(plan.step_s or 0.0 for plan in plans))
    used = [name for name in _SHOWN if any(_seconds(plan, name) for plan in plans)]
    labels = [short(f"{where(plan)}: {plan.layout}", 55) for plan in plans]
    seconds = {name: [_seconds(plan, name) for plan in plans] for name in used}
    figure = chart(
        "dimensions", "stacks", stacks(scale, labels, seconds, _SHOWN),
        caption="The predicted step of the best layouts: computation, the pipeline's bubble, and the communication of"
        " each dimension that nothing hides.",
        alt=f"A stacked bar for each of {count(len(plans), 'layout')}.", table=_step_table(plans, used, scale),
        height=90 + 32 * len(plans),
    )  # fmt: skip
    return Section("dimensions", title, figure)


def _step_table(plans: Sequence[Plan], used: Sequence[str], scale: Scale) -> Html:
    rows: list[list[Content]] = [
        [where(plan), plan.layout or "", *(scale.number(_seconds(plan, name)) for name in used)] for plan in plans
    ]
    return table(
        "Parts of the step", ["Machines", "Layout", *(f"{name} {scale.unit}" for name in used)], rows, left={0, 1}
    )


def _seconds(plan: Plan, part: str) -> float:
    dimension = part.removesuffix(" parallel")
    if plan.dimensions is not None and dimension in plan.dimensions:
        return plan.dimensions[dimension]
    return plan.times.of(part) if plan.times and part in ("compute", "bubble", "other") else 0.0


def _time_against_cost(answer: Answer) -> Section | Absent:
    """Every layout that was predicted on a machine with a price."""
    title = "Layouts: time against cost"
    known = [(one, *time_and_cost(answer, one)) for one in answer.tried if one.tried.estimate]
    priced = [(one, time_s, usd) for one, time_s, usd in known if time_s and usd]
    if not priced:
        return Absent(title, "no layout has a time and a price")
    front = [priced[index] for index in pareto_front([(time_s, usd) for _, time_s, usd in priced])]
    best = {id(one) for one, _, _ in front}
    rest = [each for each in priced if id(each[0]) not in best]
    rest = rest[:: max(1, -(-len(rest) // _POINTS))]
    unit, unit_s = time_unit(min(answer.budget_s, max(time_s for _, time_s, _ in priced)))
    labels: list[str] = []
    names = [short(one.tried.layout.text(), 30) for one, *_ in front]
    groups = [
        {**_points("nothing is faster and cheaper", front, labels, unit_s), "colour": "--series-4",
         "symbol": "diamond", "size": 11, "opacity": 1, "names": names},
        {**_points("other layouts", rest, labels, unit_s), "colour": "--series-1", "symbol": "circle", "size": 5,
         "opacity": 0.5},
    ]  # fmt: skip
    data = {
        "groups": [group for group in groups if group["points"]],
        "front": [[rounded(time_s / unit_s), rounded(usd)] for _, time_s, usd in front],
        "budget": rounded(answer.budget_s / unit_s),
        "limit": f"budget {duration(answer.budget_s)}",
        "labels": labels,
        "unit": unit,
    }
    drawn = f", of which {len(rest) + len(front):,} are drawn" if len(rest) + len(front) < len(priced) else ""
    rows: list[list[Content]] = [[_named(one), duration(time_s), significant(usd)] for one, time_s, usd in front]
    nothing_beats = table("Layouts that nothing beats in both time and cost", ["Layout", "Time", "Cost USD"], rows)
    figure = chart(
        "layout-costs", "pareto", data,
        caption=f"Each point is a layout on a number of machines; {len(priced):,} were predicted{drawn}.",
        alt=f"Points of cost against time. On the front: {'; '.join(_named(one) for one, *_ in front[:6])}.",
        table=nothing_beats, height=420,
    )  # fmt: skip
    return Section("layout-costs", title, figure)


def _named(one: TriedOn) -> str:
    return f"{one.nodes} x {one.instance.instance_type}: {one.tried.layout.text()},mb{one.tried.micro_batch}"


def _points(
    label: str, found: Sequence[tuple[TriedOn, float, float]], labels: list[str], unit_s: float
) -> dict[str, Any]:
    """The points of these layouts: time and cost, the intervals of both, and the number of the label."""
    points = []
    for one, time_s, usd in found:
        estimate = one.tried.estimate
        assert estimate is not None
        ends = (estimate.low_s / estimate.step_s, estimate.high_s / estimate.step_s)
        times, costs = ([rounded(value * end) for end in ends] for value in (time_s / unit_s, usd))
        points.append([rounded(time_s / unit_s), rounded(usd), *times, *costs, len(labels)])
        labels.append(short(_named(one), 90))
    return {"label": label, "points": points}
