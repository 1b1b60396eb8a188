"""The answer of `ddlprof recommend` as text for people. The recommender has ranked the plans already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from typing import TYPE_CHECKING

from ddlprof.base.text import text_of
from ddlprof.base.units import count, duration, percent, significant
from ddlprof.instance_catalog.records import OWN_PRICE
from ddlprof.recommender.compute.alignment import PAD
from ddlprof.recommender.plans.shown import fastest_of, knee_of
from ddlprof.report.plans.changes import changes_of
from ddlprof.report.plans.data import Answer, settings_in_words
from ddlprof.report.plans.pareto_plot import Axis, apart, axes, plot
from ddlprof.report.plans.table import plans_table
from ddlprof.report.plans.words import described, memory_in_words, time_unit
from ddlprof.report.text import labelled, wrapped

if TYPE_CHECKING:
    from ddlprof.recommender.plans.plan import Plan

OLD_PRICE_DAYS = 90
_WIDTH, _WIDEST, _TABLE_WIDTH = 80, 100, 120
"""Of lines where there is no terminal, of lines at most, and of tables where there is no terminal."""
_Say = Callable[..., list[str]]
"""Makes lines of a label and its texts."""
_LETTERS = "abcdefgh"
"""The number of plans on the Pareto front that are named."""
_SAY_ENOUGH = ("over budget", "over the highest cost", "retired", "fraction of a GPU")
"""Rejections whose name alone tells the reason."""
_KINDS, _DETAILS = 2, 3
"""Of rejections in the one line, and of each kind in full."""


def render(answer: Answer, top: int, *, all_sizes: bool = False, why: bool = True, columns: int | None = None) -> str:
    """The page, ending with a line end; the table has the `top` best types, with `all_sizes` the `top` best plans.

    Without `why` it is the answer alone: the plans, the cheapest, balanced and fastest, what would change that, and a
    line for what was rejected and for old prices. Nothing but names is wider than so many `columns`; None: there is no
    terminal.
    """
    room = columns or _TABLE_WIDTH
    say: _Say = partial(labelled, width=min(columns or _WIDTH, _WIDEST), indent=10)
    work = f"{count(round(answer.samples), 'sample')} in {duration(answer.budget_s)}"
    accepted = answer.accepted
    lines = [f"ddlprof  recommend {answer.job} · {work}", *_caution(answer.plans), ""]
    if said := not_about_gpus(answer):
        lines += [*say("Mind", said), ""]
    if answer.differences:
        lines += [*say("Asked", settings_in_words(answer.differences)), ""]
    if accepted:
        lines += [*plans_table(answer.rows(top, all_sizes=all_sizes), room), "", *_extremes(answer, say)]
    else:
        lines += say("None", why_none(answer))
    lines += [*_as_measured(answer, say), *_changes(answer, say), *_padding(accepted[:1], say), ""]
    if accepted and why and room >= _WIDTH:
        lines += [*_pareto(answer), ""]
    lines += _rejected(answer, why or not accepted, say)
    shown = accepted[:top] or list(answer.plans[:1])
    lines += _reasons(answer, shown, say) if why else say("Prices", *old_prices_of(shown, answer.today))
    return text_of(lines)


def _caution(plans: Sequence[Plan]) -> list[str]:
    from ddlprof.recommender.basis import NO_GPU_MEASURED

    return ["         extrapolated: no GPU was measured"] if any(NO_GPU_MEASURED in p.basis for p in plans) else []


_CARRIED_SHARE = 0.5
"""A plan whose time is carried over from RUN by at least this share hardly depends on the machine."""


def not_about_gpus(answer: Answer) -> str:
    """A warning where most of the best plan's time is carried over from RUN, so no GPU shortens it; else empty."""
    plan = next(iter(answer.accepted), None)
    if plan is None or not plan.time_s or plan.times is None:
        return ""
    seconds = {name: getattr(plan, f"{part}_s") or 0.0 for part, name in _BESIDES.items() if part != "evaluation"}
    seconds |= {name: plan.steps * plan.times.of(each) for each, name in _CARRIED.items()}
    carried = sum(seconds.values()) / plan.time_s
    if carried < _CARRIED_SHARE:
        return ""
    most = max(seconds, key=lambda name: seconds[name])
    return (
        f"this is not about GPUs: {percent(carried)} of the best plan's time is carried over from RUN, most of it for "
        f"{most}, and no GPU shortens it; shorten that first"
    )


def _padding(plans: Sequence[Plan], say: _Say) -> list[str]:
    """The cheapest gain that there is, where sizes of the model's products do not suit the GPU of the best plan."""
    return [
        line
        for plan in plans
        for text in plan.basis
        if text.startswith(PAD)
        for line in say("Pad", text.removeprefix(PAD))
    ]


def _reasons(answer: Answer, shown: Sequence[Plan], say: _Say) -> list[str]:
    """What the best plan rests on, and what would tell more."""
    best = shown[0] if shown else None
    return [
        *say("Rests on", *(best.basis if best else ())),
        *say("Counted", counted(answer.startup_s, best)),
        *(say("Energy", energy_of(answer, best)) if best and best.energy_kwh is not None else []),
        *say("Prices", prices_of(shown, answer.today)),
        *(say("Next", answer.advice) if answer.advice else []),
    ]


def _extremes(answer: Answer, say: _Say) -> list[str]:
    accepted = answer.accepted
    other = say("Second", second) if (second := second_way_to_pay(accepted)) else []
    knee, fastest = knee_of(answer.front), fastest_of(accepted)
    memory = memory_in_words(accepted)
    return [
        *say("Cheapest", described(accepted[0])),
        *(say("Memory", "; ".join(memory)) if memory else []),
        *other,
        *(say("Balanced", described(knee)) if knee else []),
        *(say("Fastest", described(fastest)) if fastest else []),
    ]


def _changes(answer: Answer, say: _Say) -> list[str]:
    """What would change the answer, in one line."""
    texts = [text for _, text in changes_of(answer)]
    return say("Changes", "; ".join(texts)) if texts else []


def second_way_to_pay(accepted: Sequence[Plan]) -> str:
    """The cheapest plan that is paid for in the other way than the cheapest of all; empty where there is none."""
    other = next((plan for plan in accepted if plan.pricing != accepted[0].pricing), None)
    if other is None:
        return ""
    words = "spot" if other.pricing == "spot" else "on demand"
    return f"{words}, if the first is not to be had: {described(other)}"


def _as_measured(answer: Answer, say: _Say) -> list[str]:
    return say("As RUN", as_measured_in_words(answer)) if answer.differences else []


def as_measured_in_words(answer: Answer) -> str:
    """The best plan with the job's own settings in words, for where others were asked for."""
    plan = answer.as_measured
    if isinstance(plan, str) or plan.reason:
        return f"no plan: {plan if isinstance(plan, str) else plan.reason}"
    return described(plan)


def _pareto(answer: Answer) -> list[str]:
    """Time against cost: nothing is both faster and cheaper than a plan with a letter."""
    priced = [plan for plan in answer.plans if plan.time_s and plan.cost_usd]
    if not priced:
        return ["All of these are paid for: there is no cost to compare with time."]
    unit, unit_s = time_unit(min(answer.budget_s, max(plan.time_s or 0.0 for plan in priced)))

    def point(plan: Plan) -> tuple[float, float]:
        return (plan.time_s or 0.0) / unit_s, plan.cost_usd or 0.0

    limit = answer.budget_s / unit_s
    x, y, in_sight = axes([point(plan) for plan in priced], limit)
    front = [plan for plan in answer.front if plan.time_s and plan.cost_usd]
    lettered = _spread([front[number] for number in apart([point(plan) for plan in front], x, y)])
    letters = {id(plan): letter for plan, letter in zip(lettered, _LETTERS, strict=False)}
    lines = wrapped(f"Cost against time{_scales(unit, x, y)}. Nothing beats a letter in both.", _WIDTH)
    if any(plan.cost_usd == 0 for plan in answer.plans):
        lines.append("Plans that cost nothing more are left out.")
    marked = [(*point(plan), letters.get(id(plan), "")) for plan in priced]
    lines += plot(marked, x, y, limit if in_sight else None)
    where_it_is = "the line" if in_sight else "further right" if limit > x.high else "further left"
    lines.append(f"The budget of {duration(answer.budget_s)} is {where_it_is}.")
    for plan in lettered:
        lines += wrapped(described(plan), _WIDTH, f"  {letters[id(plan)]}  ")
    return lines


def _scales(unit: str, x: Axis, y: Axis) -> str:
    """`, USD (logarithmic) and hours`: what the axes show."""
    if x.is_log and y.is_log:
        return f", USD and {unit}, logarithmic"
    return f", USD{' (logarithmic)' * y.is_log} and {unit}{' (logarithmic)' * x.is_log}"


def _spread(front: Sequence[Plan]) -> list[Plan]:
    """The plans at the ends of the front and a few in between."""
    most = len(_LETTERS)
    if len(front) <= most:
        return list(front)
    return [front[round(number * (len(front) - 1) / (most - 1))] for number in range(most)]


def why_none(answer: Answer) -> str:
    """The reasons why there is no plan, and what would make one possible."""
    over_cost = [plan for plan in answer.plans if plan.rejection == "over the highest cost"]
    if over_cost:
        cheapest = min(over_cost, key=lambda plan: plan.cost_high_usd or 0.0)
        return f"what meets the budget costs too much; the cheapest is {described(cheapest)}; raise --max-cost"
    soonest = answer.plans[0] if answer.plans else None
    if soonest is None or soonest.rejection != "over budget":
        return "every candidate was rejected; the reasons are below"
    return (
        f"no plan meets {duration(answer.budget_s)}. Soonest done is {described(soonest)}:"
        f" give a budget of {duration(soonest.time_high_s or 0.0)}, or more nodes with --max-nodes"
    )


def _rejected(answer: Answer, why: bool, say: _Say) -> list[str]:
    reasons = answer.rejections
    if not reasons:
        return []
    most = reasons.most_common(None if why else _KINDS)
    kinds = ", ".join(f"{number:,} {name}" for name, number in most)
    if not why:
        rest = reasons.total() - sum(number for _, number in most)
        return say("Rejected", f"{reasons.total():,}: {kinds}{f', {rest:,} other' if rest else ''} (--why)")
    lines = say("Rejected", f"{count(reasons.total(), 'candidate')}: {kinds}")
    for kind, _ in most:
        if kind not in _SAY_ENOUGH:
            lines += _details(kind, Counter(plan.reason for plan in answer.plans if plan.rejection == kind), say)
    return lines


def _details(kind: str, reasons: Counter[str], say: _Say) -> list[str]:
    """A kind of rejection in full: the most frequent reasons of that kind."""
    lines = []
    for reason, number in reasons.most_common(_DETAILS):
        detail = reason.partition(":")[2].strip() or kind
        lines += say("", f"{kind}: {detail} ({count(number, 'candidate')})")
    if len(reasons) > _DETAILS:
        rest = reasons.total() - sum(number for _, number in reasons.most_common(_DETAILS))
        lines += say("", f"{kind}: {count(rest, 'candidate')} for other reasons; -o FILE.csv has all of them")
    return lines


_BESIDES = {
    "start_up": "start-up of the job",
    "epoch_start": "first batches of epochs",
    "evaluation": "evaluations",
    "checkpoint": "checkpoints",
}
_CARRIED = {"h2d": "copies to the device", "other": "other time of steps"}


def counted(startup_s: float, plan: Plan | None) -> str:
    """The parts of the time besides steps, as shares of the best plan's time."""
    text = f"{duration(startup_s)} to start the machines"
    if plan is not None and plan.time_s:
        seconds = {name: getattr(plan, f"{part}_s") for part, name in _BESIDES.items()}
        seen = [f"{percent(s / plan.time_s)} {name}" for name, s in seconds.items() if s is not None]
        if not seen and plan.interrupted_s is None:
            return f"{text}; no evaluations, checkpoints, disks or traffic"
        text += "; " + ", ".join(seen)
        if plan.interrupted_s is not None:
            text += f", {percent(plan.interrupted_s / plan.time_s)} lost to {interruptions_in_words(plan)}"
    return f"{text}; no disks, no traffic"


def energy_of(answer: Answer, plan: Plan) -> str:
    """`at most 62 kWh for the GPUs of the first plan, by their boards' power; 19 kg of CO2`."""
    kwh = plan.energy_kwh or 0.0
    text = f"at most {significant(kwh)} kWh for the GPUs of the first plan, by the power of their boards"
    if answer.carbon_g_per_kwh is None:
        return text
    return f"{text}: {significant(kwh * answer.carbon_g_per_kwh / 1000)} kg of CO2"


def interruptions_in_words(plan: Plan) -> str:
    """`2.3 interruptions, one every 5 h`."""
    often = duration(3600 / plan.interruptions_per_hour) if plan.interruptions_per_hour else "never"
    return f"{significant(plan.interruptions or 0.0)} interruptions, one every {often}"


def prices_of(plans: Sequence[Plan], today: date) -> str:
    """The source and the age of the prices shown."""
    places = sorted({f"{plan.cloud} {plan.region}" for plan in plans})
    dates = sorted({plan.price_as_of for plan in plans if plan.price_as_of})
    text = ", ".join(places)
    own = [plan for plan in plans if plan.price_basis == OWN_PRICE]
    if own and len(own) == len(plans):
        return f"{text}, your own" + (f", of {dates[0]}" if dates else "")
    if own or any(plan.is_discounted for plan in plans):
        text += ", with your own prices and discounts"
    if not dates:
        return f"{text}, undated; newer: ddlprof instances refresh"
    text += f", of {dates[0]}" + (f" to {dates[-1]}" if len(dates) > 1 else "")
    return "; ".join([text, *old_prices_of(plans, today)])


def old_prices_of(plans: Sequence[Plan], today: date) -> list[str]:
    """How old the oldest price shown is and what to do about it, if that is old."""
    dates = [plan.price_as_of for plan in plans if plan.price_as_of and plan.price_basis != OWN_PRICE]
    days = (today - date.fromisoformat(min(dates))).days if dates else 0
    return [f"{days} days old; newer: ddlprof instances refresh"] if days > OLD_PRICE_DAYS else []
