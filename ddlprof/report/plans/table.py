"""The table of plans as text, as wide as there is room, and what is to be known of each plan, in words or letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ddlprof.base.units import percent, significant
from ddlprof.instance_catalog.records import MARKET_PRICE, OWN_PRICE, is_assumed
from ddlprof.recommender.compute.memory_fit import PERHAPS
from ddlprof.report.plans.words import where
from ddlprof.report.text import aligned, wrapped

if TYPE_CHECKING:
    from ddlprof.recommender.plans.shown import ShownPlan


class Remark(NamedTuple):
    """What is to be known of a plan: in a word, and what that means where the word alone does not tell. A letter stands
    for it where there is no room."""

    word: str
    meaning: str = ""


REMARKS: Mapping[str, Remark] = {
    "C": Remark("cheapest"),
    "B": Remark("balanced", "a little faster costs much, a little cheaper takes much longer"),
    "F": Remark("fastest"),
    "s": Remark("spot", "can be taken away at any time, interruptions are counted"),
    "f": Remark("failures counted", "those of machines"),
    "x": Remark("extrapolated", "beyond what was measured, so less sure"),
    "?": Remark("fits perhaps", "in the memory of the GPUs"),
    "m": Remark("memory not known", "assumed to fit"),
    "a": Remark("ARM", "a processor which the job's packages must be built for"),
    "~": Remark("assumed price", "read nowhere"),
    "v": Remark("market price", "varies by host and hour"),
    "o": Remark("own price"),
    "d": Remark("discounted"),
}
_MOST_DIGITS = 6
_WORDS, _LETTERS = "NOTES", ""
_ALL = ("#", "CLOUD", "INSTANCE", "GPUS", "BATCH", "TIME", "COST", "BOUND BY", "LAYOUT", "MFU")
_FORMS: Sequence[Sequence[str]] = (
    (*_ALL, _WORDS),
    (*_ALL, _LETTERS),
    ("#", "CLOUD", "INSTANCE", "GPUS", "TIME", "COST", "LAYOUT", "MFU", _LETTERS),
    ("#", "INSTANCE", "GPUS", "MEAN TIME", "MEAN COST", "LAYOUT", _LETTERS),
    ("#", "MACHINES", "MEAN TIME", "MEAN COST"),
)
"""The columns, from the widest table to the narrowest."""
_FIGURES = frozenset({"#", "BATCH", "MEAN TIME", "MEAN COST"})


def plans_table(shown: Sequence[ShownPlan], width: int) -> list[str]:
    """The rows with a heading, and what their letters and columns mean: the widest form that fits, or the narrowest."""
    known = _columns(shown)
    for form in _FORMS:
        names = [name for name in form if name in known]
        rows = zip(*(known[name] for name in names), strict=True)
        lines = aligned(list(rows), right={at for at, name in enumerate(names) if name in _FIGURES})
        if max(map(len, lines)) <= width:
            break
    return [*lines, *wrapped(_legend(shown, names), width)]


def _columns(shown: Sequence[ShownPlan]) -> dict[str, list[str]]:
    """The head and the cells of each column that these plans have."""
    plans = [row.plan for row in shown]
    unit, unit_s = ("h", 3600.0) if (plans[0].time_high_s or 0.0) >= 7200 else ("min", 60.0)
    times = [[(t or 0.0) / unit_s for t in (plan.time_s, plan.time_low_s, plan.time_high_s)] for plan in plans]
    costs = [[c or 0.0 for c in (plan.cost_usd, plan.cost_low_usd, plan.cost_high_usd)] for plan in plans]
    digits = _telling_digits([cost for cost, *_ in costs])
    columns = {
        "#": ["#", *map(str, range(1, len(shown) + 1))],
        "INSTANCE": ["INSTANCE", *(plan.instance_type for plan in plans)],
        "MACHINES": ["MACHINES", *map(where, plans)],
        "GPUS": ["GPUS", *(f"{plan.nodes} x {plan.placement[0]}" for plan in plans)],
        "BATCH": ["BATCH", *(str(plan.global_batch) for plan in plans)],
        "TIME": [f"TIME {unit} [80 %]", *map(_interval, times)],
        "COST": ["COST USD [80 %]", *(_interval(each, digits) for each in costs)],
        "MEAN TIME": [f"TIME {unit}", *(significant(mean) for mean, *_ in times)],
        "MEAN COST": ["USD", *(significant(mean, digits) for mean, *_ in costs)],
        "BOUND BY": ["BOUND BY", *(plan.bound_by or "" for plan in plans)],
        _WORDS: [_WORDS, *map(notes_of, shown)],
        _LETTERS: [_LETTERS, *map(letters_of, shown)],
    }
    if len({plan.cloud for plan in plans}) > 1:
        columns["CLOUD"] = ["CLOUD", *(plan.cloud for plan in plans)]
    if any(plan.layout for plan in plans):
        columns["LAYOUT"] = ["LAYOUT", *(f"{plan.layout},mb{plan.batch_per_gpu}" for plan in plans)]
        columns["MFU"] = ["MFU", *("" if plan.mfu is None else percent(plan.mfu) for plan in plans)]
    return columns


def _legend(shown: Sequence[ShownPlan], names: Sequence[str]) -> str:
    """What the columns and the letters mean that are there."""
    said = ["GPUS: nodes x GPUs in each."] * ("GPUS" in names)
    said += ["BATCH: samples of an update, of all GPUs."] * ("BATCH" in names)
    if _LETTERS in names:
        used = "".join(map(remarks_of, shown))
        told = [(letter, *remark) for letter, remark in REMARKS.items() if letter in used]
        letters = [f"{letter} {word}{meaning and f': {meaning}'}" for letter, word, meaning in told]
        said += [f"{'; '.join(letters)}."] * bool(letters)
    if any(row.folded for row in shown):
        more = "+N: so many other" if _LETTERS in names else "Other"
        said.append(f"{more} sizes of these machines are in time, too (--all-sizes).")
    return " ".join(said)


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
    """What is to be known of a row, in words: `balanced, extrapolated, 5 other sizes`."""
    sizes = [f"{row.folded} other size{'s' * (row.folded > 1)}"] if row.folded else []
    return ", ".join([*(REMARKS[letter].word for letter in remarks_of(row)), *sizes])


def letters_of(row: ShownPlan) -> str:
    """The same in letters: `Bx +5`."""
    return " ".join([*filter(None, [remarks_of(row)]), *([f"+{row.folded}"] if row.folded else [])])


def remarks_of(row: ShownPlan) -> str:
    """The letters of `REMARKS` that hold for a row."""
    plan = row.plan
    holds = {
        "C": row.position == 1,
        "B": row.is_knee,
        "F": row.is_fastest,
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
    return "".join(letter for letter in REMARKS if holds[letter])
