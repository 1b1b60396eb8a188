"""The table of plans as text, and the letters that stand for what is to be known of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddlprof.base.units import percent, significant
from ddlprof.instance_catalog.records import MARKET_PRICE, OWN_PRICE, is_assumed
from ddlprof.recommender.compute.memory_fit import PERHAPS
from ddlprof.report.text import aligned, wrapped

if TYPE_CHECKING:
    from ddlprof.recommender.plans.plan import Plan
    from ddlprof.recommender.plans.shown import ShownPlan

LEGEND = {
    "s": "spot, can be taken away at any time: interruptions are counted",
    "f": "failures of machines are counted",
    "x": "extrapolated",
    "?": "fits perhaps in memory",
    "m": "memory not known, assumed to fit",
    "a": "ARM processor, which the job's packages must be built for",
    "~": "price read nowhere, assumed",
    "v": "price of a market, varies by host and hour",
    "o": "your own price",
    "d": "your discount taken off",
}
MARKS = {
    "C": "the cheapest",
    "K": "the knee of time against cost",
    "F": "the fastest",
}
_MOST_DIGITS = 6
_WIDTH = 80


def plans_table(shown: Sequence[ShownPlan]) -> list[str]:
    """The rows with a heading, and what their letters and columns mean. `#` is the position in CSV and JSON."""
    plans = [row.plan for row in shown]
    unit, unit_s = ("h", 3600.0) if (plans[0].time_high_s or 0.0) >= 7200 else ("min", 60.0)
    several = len({plan.cloud for plan in plans}) > 1
    divided = any(plan.layout for plan in plans)
    rows = [
        [
            "#",
            *["CLOUD"] * several,
            "INSTANCE",
            "GPUS",
            "BATCH",
            f"TIME {unit} [80 %]",
            "COST USD [80 %]",
            "BOUND BY",
            *["LAYOUT", "MFU"] * divided,
            "",
        ]
    ]
    digits = _telling_digits([plan.cost_usd or 0.0 for plan in plans])
    for row in shown:
        plan = row.plan
        times = [(t or 0.0) / unit_s for t in (plan.time_s, plan.time_low_s, plan.time_high_s)]
        costs = [c or 0.0 for c in (plan.cost_usd, plan.cost_low_usd, plan.cost_high_usd)]
        gpus = f"{plan.nodes} x {plan.placement[0]}"
        rows.append(
            [str(row.position), *[plan.cloud] * several, plan.instance_type, gpus, str(plan.global_batch),
             _interval(times), _interval(costs, digits), plan.bound_by or "", *_layout(plan) * divided, notes_of(row)]
        )  # fmt: skip
    used = "".join(marks_of(row) + flags_of(row.plan) for row in shown)
    legend = [f"{flag} {meaning}" for flag, meaning in (MARKS | LEGEND).items() if flag in used]
    columns = "GPUS: nodes x GPUs in each. BATCH: samples of an update, of all GPUs."
    if any(row.folded for row in shown):
        legend.append("+N so many other sizes of these machines meet the budget, too: --all-sizes lists them")
    return [*aligned(rows, right={0, 3 + several}), columns, *wrapped("; ".join(legend), _WIDTH)]


def _layout(plan: Plan) -> list[str]:
    """The layout with its micro-batch, and the MFU."""
    return [f"{plan.layout},mb{plan.batch_per_gpu}", "" if plan.mfu is None else percent(plan.mfu)]


def _interval(values: Sequence[float], digits: int = 3) -> str:
    """The mean with that many digits, and its interval."""
    mean, low, high = values
    return f"{significant(mean, digits)} [{significant(low)}-{significant(high)}]"


def _telling_digits(values: Sequence[float]) -> int:
    """The number of digits that shows which of two values is smaller: three, or more where they are close."""
    different = len({f"{value:.{_MOST_DIGITS}g}" for value in values})
    texts = (len({significant(value, digits) for value in values}) for digits in range(3, _MOST_DIGITS))
    return next((digits for digits, seen in enumerate(texts, 3) if seen == different), _MOST_DIGITS)


def notes_of(row: ShownPlan) -> str:
    """The letters of a row, and how many sizes of its machines are folded into it: `Kx +5`."""
    sizes = [f"+{row.folded}"] if row.folded else []
    return " ".join([*filter(None, [marks_of(row) + flags_of(row.plan)]), *sizes])


def marks_of(row: ShownPlan) -> str:
    """The letters of `MARKS` that hold for a row."""
    marks = {"C": row.position == 1, "K": row.is_knee, "F": row.is_fastest}
    return "".join(mark for mark, holds in marks.items() if holds)


def flags_of(plan: Plan) -> str:
    """The letters of `LEGEND` that hold for a plan."""
    flags = {
        "s": plan.pricing == "spot",
        "f": plan.interruptions is not None and plan.pricing != "spot",
        "x": bool(plan.extrapolated),
        "?": plan.memory_verdict == PERHAPS,
        "m": plan.fits_memory is None,
        "a": plan.cpu_arch == "arm64",
        "~": is_assumed(plan.price_basis),
        "v": plan.price_basis.partition(",")[0] == MARKET_PRICE,
        "o": plan.price_basis == OWN_PRICE,
        "d": plan.is_discounted,
    }
    return "".join(flag for flag, holds in flags.items() if holds)
