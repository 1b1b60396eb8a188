"""The classes of the steps, and the loss of the training, over the run."""

from __future__ import annotations

from typing import Any

import numpy as np

from ddlprof.analysis.binning import BinnedSteps, Bins, bin_steps, make_bins
from ddlprof.analysis.loss_curve import LossCurve
from ddlprof.base.units import count, significant
from ddlprof.model.classes import TABLE
from ddlprof.model.records import Flag
from ddlprof.report.html.chart import ChartMenu, chart, numbers, packed, rounded
from ddlprof.report.html.element import Content, Html, table
from ddlprof.report.html.shell import Absent, Section
from ddlprof.report.run.html.subject import NAMES, Subject
from ddlprof.report.run.loss import LossLine
from ddlprof.report.run.text import loss_text

MOST_BINS = 1200
FEW_STEPS = 400
"""So many steps or fewer in view are drawn one by one."""
MOST_NUMBERS = 4_000_000
"""The most numbers on the page for single steps: about a byte each."""
TABLE_ROWS = 60
_DIGITS = 4
_USUAL_PERCENTILE = 90  # a loader that delivers in bursts makes up to every 8th step a long one
_CUT_ABOVE, _HEADROOM = 2.5, 1.5
_LOSS_TITLE = "Loss"
_LOSS_DIGITS = 5


def over_time(subject: Subject) -> Section | Absent:
    """Stacked classes over the steps, with the longest step of each bin and what was unusual."""
    title = "Every step"
    bins = make_bins(subject.steps, MOST_BINS, subject.window)
    if not len(bins):
        return Absent(title, "no step was measured" if subject.window == (None, None) else "no step is in --step-range")
    binned = bin_steps(subject.ranks, bins)
    first, last = int(bins.first[0]), int(bins.last[-1])
    top = _usual_height(subject, binned)
    drawn = _drawn(subject, binned)
    single = _single(subject, len(drawn["series"])) if (bins.first != bins.last).any() else None
    figure = chart(
        "steps",
        "steps",
        {"unit": subject.scale.unit, **drawn, "top": top, "few": FEW_STEPS, **({"packed": single} if single else {})},
        caption=f"{_what_is_drawn(bins, drawn, single is not None)} The marks below are steps that were unusual. "
        "Drag or use the fields to zoom.",
        alt=_alt(subject, binned),
        table=_table(subject),
        height=420,
        steps=(first, last),
        choice=ChartMenu("Height", ["of usual steps, longer ones cut off", "of the longest step"])
        if top is not None
        else None,
    )
    return Section("steps", title, figure)


def _drawn(subject: Subject, binned: BinnedSteps) -> dict[str, Any]:
    """The data that the script draws: bins of steps."""
    return {
        "first": binned.bins.first.tolist(),
        "last": binned.bins.last.tolist(),
        "series": [{**names, "values": _scaled(subject, values)} for names, values in _series(subject, binned)],
        "longest": _scaled(subject, binned.longest_ns),
        "shortest": _scaled(subject, binned.shortest_ns),
        "flags": _flags(subject, binned),
    }


def _single(subject: Subject, series: int) -> dict[str, Any] | None:
    """Every single step, packed; None where the page would be too large, or only sums of some steps are known.

    `steps`: the first and the last of each row of consecutive numbers. One rank's longest step is its mean.
    """
    if any(rank.times.aggregates for rank in subject.ranks):
        return None
    steps = make_bins(subject.steps, len(subject.steps), subject.window)
    if len(steps) > _most_single(series):
        return None
    binned = bin_steps(subject.ranks, steps)
    factor = subject.scale.per_second / 1e9
    several = len(subject.ranks) > 1
    begins = np.flatnonzero(np.diff(steps.first, prepend=-2) != 1)
    ends = np.append(begins[1:], len(steps)) - 1
    return {
        "steps": np.stack([steps.first[begins], steps.first[ends]], axis=1).tolist(),
        "series": [{**names, "values": packed(values * factor)} for names, values in _series(subject, binned)],
        "longest": packed(binned.longest_ns * factor) if several else None,
        "shortest": packed(binned.shortest_ns * factor) if several else None,
        "flags": _flags(subject, binned),
    }


def _most_single(series: int) -> int:
    """The most steps that a page can have one by one: each has a number in every list of `_drawn`."""
    return MOST_NUMBERS // (series + 4)


def _what_is_drawn(bins: Bins, drawn: dict[str, Any], has_single: bool) -> str:
    if (bins.first == bins.last).all():
        return "Every step is drawn, as the mean over the ranks."
    text = (
        f"{len(bins):,} bins of up to {int((bins.last - bins.first + 1).max()):,} steps: heights are exact means "
        "over all steps and ranks of a bin, and the lines are its longest and its shortest single step."
    )
    if has_single:
        return f"{text} Where {FEW_STEPS} steps or fewer are in sight, each is drawn."
    most = _most_single(len(drawn["series"])) // 1000 * 1000
    return f"{text} Single steps are on pages of up to {most:,} steps: --step-range A:B makes one."


def _usual_height(subject: Subject, binned: BinnedSteps) -> float | None:
    """The height at which the drawing is cut, in its unit, if a few bins would dwarf the others; else None."""
    mean, longest = binned.mean_ns["step"], binned.longest_ns
    usual = float(np.nanpercentile(mean, _USUAL_PERCENTILE))
    if np.nanmax(longest) <= _CUT_ABOVE * usual:
        return None
    return float(f"{_HEADROOM * usual * subject.scale.per_second / 1e9:.2g}")


def _scaled(subject: Subject, nanoseconds: Any) -> list[float | None]:
    return numbers(nanoseconds * subject.scale.per_second / 1e9, _DIGITS - 1)


def _series(subject: Subject, binned: BinnedSteps) -> list[tuple[dict[str, str], Any]]:
    """The stacked series: each measured class, split into the parts of it that are known, in nanoseconds."""
    series: list[tuple[str, Any]] = []
    for each in TABLE:
        whole = binned.mean_ns[each.name]
        parts = [part for part in each.part_names if part in subject.terms and part in binned.mean_ns]
        if parts:
            split = sum((np.nan_to_num(binned.mean_ns[part]) for part in parts), start=np.zeros(len(whole)))
            series += [(part, binned.mean_ns[part]) for part in parts if np.nan_to_num(binned.mean_ns[part]).any()]
            whole = np.where(whole - split > 1, whole - split, np.nan)  # a smaller rest is rounding
        if np.nan_to_num(whole).any():
            series.append((each.name, whole))
    return [({"name": name, "label": NAMES[name]}, values) for name, values in series]


def _flags(subject: Subject, binned: BinnedSteps) -> list[dict[str, Any]]:
    """The bins in which some rank has a step with each flag."""
    found = []
    for flag in Flag:
        marked: set[int] = set()
        for rank in subject.ranks:
            steps = rank.times.step[rank.flags & int(flag) != 0]
            steps = steps[(steps >= binned.bins.first[0]) & (steps <= binned.bins.last[-1])]
            marked.update(binned.bins.of(steps).tolist())
        if marked:
            found.append({"label": (flag.name or "").lower().replace("_", " "), "bins": sorted(marked)})
    return found


def _alt(subject: Subject, binned: BinnedSteps) -> str:
    longest = binned.longest_ns
    at = int(np.nanargmax(longest))
    parts = ", ".join(NAMES[name] for name in subject.terms) or "none"
    return (
        f"Stacked areas over {count(int(binned.bins.last[-1] - binned.bins.first[0] + 1), 'step')}: {parts}. "
        f"The longest single step took {subject.time(float(longest[at]) / 1e9)}, between steps "
        f"{binned.bins.first[at]} and {binned.bins.last[at]}."
    )


def _table(subject: Subject) -> Html:
    """The table with the figures of the drawing, in fewer bins."""
    bins = make_bins(subject.steps, TABLE_ROWS, subject.window)
    binned = bin_steps(subject.ranks, bins)
    names = [each.name for each in TABLE if not np.isnan(binned.mean_ns[each.name]).all()]
    rows: list[list[Content]] = []
    for at in range(len(bins)):
        first, last = int(bins.first[at]), int(bins.last[at])
        values = [binned.mean_ns["step"][at], *(binned.mean_ns[name][at] for name in names), binned.longest_ns[at]]
        cells = [None if np.isnan(value) else subject.scale.number(float(value) / 1e9) for value in values]
        rows.append([f"{first}" if first == last else f"{first}-{last}", *cells])
    unit = subject.scale.unit
    head = ["Steps", f"Mean step {unit}", *(f"{NAMES[name]} {unit}" for name in names), f"Longest {unit}"]
    return table("Means over the ranks; ddlprof export writes every step of every rank", head, rows)


def loss_over_updates(subject: Subject) -> Section | Absent:
    """The losses of the rank that the card has, and the curve if there is one."""
    line, found = subject.report.loss, subject.headline.loss_curve if subject.headline else None
    if line is None or found is None:
        return Absent(_LOSS_TITLE, "none was noted: only one that backward is called on, in the host's memory, is read")
    if not len(found.losses):
        return Absent(_LOSS_TITLE, found.reason or "too few were noted")
    rows: list[list[Content]] = [
        [f"{update:,.0f}", _loss_figure(loss), _loss_figure(found.curve.at(update)) if found.curve else None]
        for update, loss in zip(found.updates.tolist(), found.losses.tolist(), strict=True)
    ]
    figure = chart(
        "loss", "lines", _loss_data(found), caption=_loss_caption(line),
        alt=f"The loss over {count(line.updates, 'update')}, from {_loss_figure(found.losses[0])} to"
        f" {_loss_figure(found.losses[-1])}.",
        table=table("Loss", ["Update", "Mean loss around it", "The curve"], rows),
    )  # fmt: skip
    return Section("loss", _LOSS_TITLE, figure)


def _loss_data(found: LossCurve) -> dict[str, object]:
    lines = [{"label": "loss", "points": _loss_points(found.updates.tolist(), found.losses.tolist())}]
    if found.curve is not None:
        at = [found.curve.at(update) for update in found.updates.tolist()]
        lines.append({"label": "curve", "points": _loss_points(found.updates.tolist(), at)})
    return {"unit": "", "along": "updates", "free": True, "lines": lines}


def _loss_points(updates: list[float], losses: list[float]) -> list[list[float]]:
    """Numbers with the digits that a reader needs."""
    return [[round(update, 1), rounded(loss)] for update, loss in zip(updates, losses, strict=True)]


def _loss_figure(loss: float) -> str:
    return significant(loss, _LOSS_DIGITS)


def _loss_caption(line: LossLine) -> str:
    said = loss_text(line) or f"not predictable: {line.reason}"
    return f"Of rank {line.rank}, means of neighbouring updates: {said}."
