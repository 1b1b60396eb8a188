"""The answer of `ddlprof recommend` as a page of HTML: time against cost, the plans, and why others were rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ddlprof.base.units import Scale, count, duration, scale_for, significant
from ddlprof.recommender.estimate import CLASSES
from ddlprof.recommender.plans.shown import fastest_of, knee_of
from ddlprof.report.html.chart import ChartMenu, chart, rounded, short, stacks
from ddlprof.report.html.element import Content, Html, facts, joined, table, tag
from ddlprof.report.html.shell import Absent, Section, page, verdict_box
from ddlprof.report.plans.changes import changes_of, unchanged_in_words
from ddlprof.report.plans.data import settings_in_words
from ddlprof.report.plans.layout_sections import layout_sections
from ddlprof.report.plans.table import REMARKS, notes_of, remarks_of
from ddlprof.report.plans.text import (
    as_measured_in_words,
    counted,
    energy_of,
    not_about_gpus,
    prices_of,
    second_way_to_pay,
    why_none,
)
from ddlprof.report.plans.words import described, memory_in_words, time_unit, where

if TYPE_CHECKING:
    from ddlprof.recommender.plans.plan import Plan
    from ddlprof.recommender.plans.shown import ShownPlan
    from ddlprof.report.plans.data import Answer

_DRAWN_REJECTED = 400
_TABLE_ROWS = 100
_REASONS = 60
_LONGEST_TITLE = 120
_FRONT = "nothing is faster and cheaper"


def render(answer: Answer, top: int, *, all_sizes: bool = False) -> list[str]:
    """The page in pieces, ending with a line end: question, answer, chart, what would change the answer, and the rest.

    The classes of the plans that the table in text has are drawn.
    """
    accepted = answer.accepted
    shown = [row.plan for row in answer.rows(top, all_sizes=all_sizes)]
    rows = answer.rows(_TABLE_ROWS, all_sizes=all_sizes)
    title = f"Machines for {short(answer.job, _LONGEST_TITLE)} · ddlprof"
    work = f"{count(round(answer.samples), 'sample')} in {duration(answer.budget_s)}"
    subtitle = f"{work} · {count(len(answer.plans), 'candidate')}"
    sections: list[Section | Absent] = [
        _time_against_cost(answer),
        _changes(answer),
        _classes(shown),
        *layout_sections(answer, top),
        _plans(rows, accepted),
        _rejected(answer),
        _assumptions(answer, accepted[:top] or list(answer.plans[:1])),
        _reading(rows),
    ]
    return list(page(title, subtitle, _top(answer), sections))


def _top(answer: Answer) -> Html:
    accepted = answer.accepted
    severity = "ok" if accepted else "critical"
    heading = where(accepted[0]) if accepted else "No plan meets the budget"
    badge = f"cheapest of {count(len(accepted), 'plan')} that meet the budget" if accepted else "nothing found"
    verdict = verdict_box(heading, badge, severity, list(_verdict(answer)))
    return joined(tag("p", _question(answer), class_="note"), verdict)


def _question(answer: Answer) -> str:
    money = "" if answer.max_cost_usd is None else f" and for at most {significant(answer.max_cost_usd)} USD"
    return (
        f"Which machines train {short(answer.job, _LONGEST_TITLE)} on {count(round(answer.samples), 'sample')} within"
        f" {duration(answer.budget_s)}{money}, at the lowest cost?"
    )


def _interval_of(plan: Plan) -> str:
    low, high = duration(plan.time_low_s or 0.0), duration(plan.time_high_s or 0.0)
    least, most = significant(plan.cost_low_usd or 0.0), significant(plan.cost_high_usd or 0.0)
    return f"the truth is four times out of five from {low} to {high} and from {least} to {most} USD"


def _verdict(answer: Answer) -> Iterator[tuple[str, Content]]:
    accepted = answer.accepted
    if accepted:
        yield "Cheapest", described(accepted[0])
        if memory := memory_in_words(accepted):
            yield "Memory", "; ".join(memory)
        yield "80 %", _interval_of(accepted[0])
        if second := second_way_to_pay(accepted):
            yield "Second", second
        knee, fastest = knee_of(answer.front), fastest_of(accepted)
        if knee:
            yield "Balanced", described(knee)
        if fastest and fastest is not accepted[0]:
            yield "Fastest", described(fastest)
    else:
        yield "Why", why_none(answer)
    if answer.differences:
        yield "Asked", settings_in_words(answer.differences)
        yield "As RUN", as_measured_in_words(answer)


def _changes(answer: Answer) -> Section | Absent:
    """The nearest price, deadline and batch with which other machines are the cheapest."""
    title = "What would change the answer"
    changes: list[tuple[str, Content]] = [(name, text) for name, text in changes_of(answer)]
    if unchanged := unchanged_in_words(answer):
        changes.append(("Batch", unchanged))
    if not changes:
        return Absent(title, "there is no answer to change")
    return Section("changes", title, facts(changes))


def _time_against_cost(answer: Answer) -> Section | Absent:
    """Every plan with a time and a price, and the Pareto front: the plans that no other beats in both."""
    title = "Time against cost"
    priced = [plan for plan in answer.plans if plan.time_s and plan.cost_usd]
    if not priced:
        return Absent(title, "no plan has a time and a price")
    front = [plan for plan in answer.front if plan.cost_usd]
    best, knee = {id(plan) for plan in front}, knee_of(front)
    kept = [plan for plan in priced if not plan.reason and id(plan) not in best]
    rejected = [plan for plan in priced if plan.reason][:_DRAWN_REJECTED]
    unit, unit_s = time_unit(min(answer.budget_s, max(plan.time_s or 0.0 for plan in priced)))
    labels: list[str] = []
    groups = [
        {**_group(_FRONT, front, labels, unit_s), "colour": "--series-4", "symbol": "diamond", "size": 11,
         "opacity": 1, "names": [short(where(plan), 30) + " (balanced)" * (plan is knee) for plan in front]},
        {**_group("meets the budget", kept, labels, unit_s), "colour": "--series-1", "symbol": "circle", "size": 7,
         "opacity": 0.6},
        {**_group("rejected", rejected, labels, unit_s), "colour": "--series-6", "symbol": "circle", "size": 5,
         "opacity": 0.6},
    ]  # fmt: skip
    data = {
        "groups": [group for group in groups if group["points"]],
        "front": [[_in_unit(plan.time_s, unit_s), rounded(plan.cost_usd)] for plan in front],
        "budget": _in_unit(answer.budget_s, unit_s),
        "limit": f"budget {duration(answer.budget_s)}",
        "labels": labels,
        "unit": unit,
    }
    caption = (
        "Each point is a plan; an axis is logarithmic where the plans span more than a decade. Nothing is both faster "
        f"and cheaper than the plans on the stepped line. The budget is {duration(answer.budget_s)}."
    )
    front_words = "; ".join(described(plan) for plan in front[:6]) or "no plan"
    figure = chart(
        "pareto", "pareto", data, caption=caption, alt=f"Points of cost against time. On the front: {front_words}.",
        table=_front_table(front), height=420,
        choice=ChartMenu("Show", ["the plans",
        "the plans, with 80 % intervals of those on the line"]) if front else None,
    )  # fmt: skip
    return Section("pareto", title, figure)


def _group(label: str, plans: Sequence[Plan], labels: list[str], unit_s: float) -> dict[str, Any]:
    """The points of these plans: time and cost, the intervals of both, and the number of the label."""
    points = []
    for plan in plans:
        times = [_in_unit(value, unit_s) for value in (plan.time_s, plan.time_low_s, plan.time_high_s)]
        costs = [rounded(value) for value in (plan.cost_usd, plan.cost_low_usd, plan.cost_high_usd)]
        points.append([times[0], costs[0], *times[1:], *costs[1:], len(labels)])
        labels.append(short(f"{where(plan)}, {plan.gpus} x {plan.gpu_model}", 90))
    return {"label": label, "points": points}


def _in_unit(seconds: float | None, unit_s: float) -> float:
    return rounded((seconds or 0.0) / unit_s)


def _front_table(front: Sequence[Plan]) -> Html:
    rows: list[list[Content]] = [[where(plan), *_amounts(plan)] for plan in front]
    return table("Plans that nothing beats in both time and cost", ["Plan", "Time [80 %]", "Cost USD [80 %]"], rows)


def _amounts(plan: Plan) -> list[str]:
    times = [duration(seconds or 0.0) for seconds in (plan.time_s, plan.time_low_s, plan.time_high_s)]
    costs = [significant(usd or 0.0) for usd in (plan.cost_usd, plan.cost_low_usd, plan.cost_high_usd)]
    return [f"{mean} [{low}, {high}]" for mean, low, high in (times, costs)]


def _classes(plans: Sequence[Plan]) -> Section | Absent:
    """The predicted step of each of the best plans."""
    title = "The step on each"
    drawn = [plan for plan in plans if plan.times]
    if not drawn:
        return Absent(title, "no step was predicted for a plan that meets the budget")
    scale = scale_for(min(plan.step_s or 0.0 for plan in drawn))
    used = [name for name in CLASSES if any(plan.times and plan.times.of(name) for plan in drawn)]
    labels = [short(where(plan), 40) for plan in drawn]
    seconds = {name: [_seconds(plan, name) for plan in drawn] for name in used}
    rows: list[list[Content]] = [
        [where(plan), plan.bound_by or "", scale.number(plan.step_s or 0.0), _interval(plan, scale),
         *(scale.number(_seconds(plan, name)) for name in used)]
        for plan in drawn
    ]  # fmt: skip
    head = ["Plan", "Bound by", f"Step {scale.unit}", "80 %", *(f"{name} {scale.unit}" for name in used)]
    figure = chart(
        "classes", "stacks", stacks(scale, labels, seconds),
        caption="The predicted step of the best plans, class by class. What bounds it can change with the machine.",
        alt=f"A stacked bar for each of {count(len(drawn), 'plan')}. The first is bound by {drawn[0].bound_by}.",
        table=table("Predicted steps", head, rows, left={0, 1}), height=90 + 32 * len(drawn),
    )  # fmt: skip
    return Section("classes", title, figure)


def _seconds(plan: Plan, name: str) -> float:
    return plan.times.of(name) if plan.times else 0.0


def _interval(plan: Plan, scale: Scale) -> str:
    return f"{scale.number(plan.step_low_s or 0.0)} to {scale.number(plan.step_high_s or 0.0)}"


def _plans(shown: Sequence[ShownPlan], accepted: Sequence[Plan]) -> Section | Absent:
    """The plans as a table, with the sizes that are not shown counted."""
    title = "Plans that meet the budget"
    if not accepted:
        return Absent(title, "none does")
    places = {f"{row.plan.cloud} {row.plan.region}" for row in shown}
    several = len(places) > 1  # one place is in the caption: the table is wide enough
    rows: list[list[Content]] = [
        [str(number), where(plan), *_amounts(plan), f"{plan.global_batch:,}", f"{plan.gpus} x {plan.gpu_model}",
         *([f"{plan.cloud} {plan.region}"] * several), plan.bound_by or "", notes_of(row)]
        for number, row in enumerate(shown, 1)
        for plan in [row.plan]
    ]  # fmt: skip
    words = ["GPUs", *(["Where"] * several), "Bound by", "Notes"]
    place = "" if several else f", in {min(places)}"
    more = f", {len(shown):,} of {len(accepted):,}" if len(accepted) > len(shown) else ""
    costs = [row.plan.cost_usd or 0.0 for row in shown]
    last = "" if costs == sorted(costs) else ", those that rather do not fit in memory last"
    figures = ["Time [80 %]", "Cost USD [80 %]", "Batch"]
    head = ["#", "Machines", *figures, *words]
    return Section(
        "plans",
        title,
        table(f"By cost{place}{more}{last}", head, rows, left={0, 1, *range(2 + len(figures), len(head))}),
    )


def _rejected(answer: Answer) -> Section | Absent:
    title = "Rejected, and why"
    reasons = Counter((plan.rejection, plan.reason.partition(":")[2].strip()) for plan in answer.plans if plan.reason)
    if not reasons:
        return Absent(title, "no candidate was rejected")
    kinds = ", ".join(f"{number:,} {name}" for name, number in answer.rejections.most_common())
    rows: list[list[Content]] = [
        [name, detail, f"{number:,}"] for (name, detail), number in reasons.most_common(_REASONS)
    ]
    more = f" Below are the {_REASONS} most frequent reasons." if len(reasons) > _REASONS else ""
    whole = table("Reasons", ["Rejected for", "Details", "Candidates"], rows, left={0, 1})
    words = tag("p", f"{count(answer.rejections.total(), 'candidate')}: {kinds}.{more}")
    return Section("rejected", title, [words, tag("details", tag("summary", "Every reason"), whole)])


def _assumptions(answer: Answer, shown: Sequence[Plan]) -> Section:
    rests = [("Rests on", tag("ul", (tag("li", each) for each in shown[0].basis)))] if shown and shown[0].basis else []
    said = not_about_gpus(answer)
    pairs: list[tuple[str, Content]] = [
        *([("Mind", said)] if said else []),
        *rests,
        ("Counted", counted(answer.startup_s, shown[0] if shown else None)),
        *([("Energy", energy_of(answer, shown[0]))] if shown and shown[0].energy_kwh is not None else []),
        ("Prices", prices_of(shown, answer.today)),
        *([("Next", answer.advice)] if answer.advice else []),
    ]
    return Section("assumptions", "What this rests on", facts(pairs))


def _reading(rows: Sequence[ShownPlan]) -> Section:
    used = "".join(map(remarks_of, rows))
    remarks = [remark for letter, remark in REMARKS.items() if letter in used and remark.meaning]
    pairs: list[tuple[str, Content]] = [(remark.word, remark.meaning) for remark in remarks]
    pairs += [
        ("other sizes", "so many other numbers of these machines, or batches, meet the budget, too"),
        (
            "80 %",
            "the interval that the truth is in four times out of five; a plan meets the budget if its upper end does",
        ),
        ("bound by", "the class that takes the most of the predicted step"),
    ]
    return Section("reading", "How to read this page", facts(pairs))
