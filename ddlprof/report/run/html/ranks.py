"""The ranks beside each other: how their steps spread, and who was late when."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.binning import binned_mean, make_bins
from ddlprof.analysis.run import RankAnalysis
from ddlprof.base.units import count
from ddlprof.model.classes import CLASSES
from ddlprof.model.records import MISSING
from ddlprof.report.html.chart import ChartMenu, chart, numbers
from ddlprof.report.html.element import Content, Html, table, tag
from ddlprof.report.html.shell import Absent, Section
from ddlprof.report.run.html.subject import NAMES, Subject

MOST_CELLS = 12_000
MOST_BINS, TABLE_BINS = 240, 12
MOST_BOXES = 64
_QUANTILES = (5, 25, 50, 75, 95)
OWN = "own"
"""The step without communication, which is the time of a rank's own work, without waits for others."""


def side_by_side(subject: Subject) -> Section | Absent:
    """How the steady steps of each rank spread, and the table of the ranks."""
    title = "The ranks"
    if not subject.report.ranks:
        return Absent(title, "no rank left a file")
    steady = [rank for rank in subject.ranks if rank.times.steady.any()]
    boxes = _boxes(subject, steady) if steady else tag("p", "No rank has a steady step.")
    return Section("ranks", title, [boxes, tag("h3", "Every rank"), rank_table(subject)])


def _boxes(subject: Subject, ranks: list[RankAnalysis]) -> Html:
    shown = ranks
    if len(ranks) > MOST_BOXES:  # the slowest, and as many of the fastest
        by_own = sorted(ranks, key=lambda rank: float(_times(rank, OWN)[rank.times.steady].mean()))
        half = MOST_BOXES // 2
        shown = sorted([*by_own[:half], *by_own[-half:]], key=lambda rank: rank.data.rank)
    names = [*([OWN] if _waits(ranks) else []), "step", *(n for n in CLASSES if subject.mean_s(n))]
    spreads = {name: np.array([_spread(rank, name) for rank in shown]) for name in names}
    factor = subject.scale.per_second / 1e9
    data = {
        "unit": subject.scale.unit,
        "ranks": [rank.data.rank for rank in shown],
        "measures": [
            {"label": _label(name), "spread": [numbers(row * factor, 4) for row in spreads[name]]} for name in names
        ],
    }
    left_out = f" Shown are the {MOST_BOXES // 2} fastest and slowest of {len(ranks)}." if shown is not ranks else ""
    step = spreads["step"][:, 2]
    caption = (
        "Steady steps of each rank. The box holds half of them, the line in it is the median, the whiskers reach from "
        f"the 5th to the 95th percentile, the diamond is the mean.{left_out}"
    )
    alt = (
        f"A box for each of {count(len(shown), 'rank')}. Medians of the step reach from "
        f"{subject.time(float(step.min()) / 1e9)} to {subject.time(float(step.max()) / 1e9)}."
    )
    return chart(
        "boxes", "boxes", data, caption=caption, alt=alt, table=_spread_table(subject, shown, spreads),
        choice=ChartMenu("Show", [_label(name) for name in names]),
    )  # fmt: skip


def _waits(ranks: list[RankAnalysis]) -> bool:
    return len(ranks) > 1 and all((rank.times.times["comm"] != MISSING).any() for rank in ranks)


def _label(name: str) -> str:
    return {"step": "the step", OWN: "own work (the step less communication)"}.get(name, NAMES.get(name, name))


def _times(rank: RankAnalysis, name: str) -> NDArray[np.int64]:
    """A time of each step, MISSING where it was not measured."""
    times = rank.times.times
    if name != OWN:
        return times[name]
    return np.where(times["comm"] == MISSING, MISSING, times["step"] - times["comm"])


def _spread(rank: RankAnalysis, name: str) -> list[float]:
    """The quantiles and the mean of the steady steps, in nanoseconds."""
    values = _times(rank, name)[rank.times.steady]
    values = values[values != MISSING]
    if not len(values):
        return [np.nan] * (len(_QUANTILES) + 1)
    return [*np.percentile(values, _QUANTILES).tolist(), float(values.mean())]


def _spread_table(subject: Subject, ranks: list[RankAnalysis], spreads: dict[str, NDArray[np.float64]]) -> Html:
    rows: list[list[Content]] = []
    for name, spread in spreads.items():
        for rank, values in zip(ranks, spread.tolist(), strict=True):
            cells = [None if value != value else subject.scale.number(value / 1e9) for value in values]
            rows.append([f"rank {rank.data.rank}", _label(name), *cells])
    head = ["Rank", "Time", *(f"{q} % {subject.scale.unit}" for q in _QUANTILES), f"Mean {subject.scale.unit}"]
    return table("Quantiles of the steady steps", head, rows, left={0, 1})


def rank_table(subject: Subject) -> Html:
    """Every rank of every attempt."""
    report = subject.report
    names = [name for name in CLASSES if subject.mean_s(name) is not None]
    rows: list[list[Content]] = []
    for rank in report.ranks:
        cells: list[Content] = [str(rank.node), rank.host, rank.device, _status(rank.status, rank.complete)]
        cells += [f"{rank.steps:,}", f"{rank.steady_steps:,}"]
        for name in ("step", *names):
            mean = rank.means_s.get(name)
            cells.append(None if mean is None else subject.scale.number(mean))
        label = f"{rank.rank}" if report.attempts == 1 else f"{rank.rank} (attempt {rank.attempt})"
        rows.append([label, *cells])
    unit = subject.scale.unit
    head = ["Rank", "Node", "Host", "Device", "Ended", "Steps", "Steady", f"Step {unit}"]
    head += [f"{NAMES[name]} {unit}" for name in names]
    return table("Means over the steady steps of each rank", head, rows, left={0, 1, 2, 3, 4})


def _status(status: str, complete: bool) -> str:
    return status if complete else "no word (killed?)"


def over_time(subject: Subject) -> Section | Absent:
    """A heat map of ranks by steps, which shows the late ranks."""
    title = "Who was late, and when"
    ranks = subject.ranks
    if len(ranks) < 2:
        return Absent(title, "one rank has nobody to be compared with" if ranks else "no rank left a file")
    most = max(20, min(MOST_BINS, MOST_CELLS // len(ranks)))
    bins = make_bins(subject.steps, most, subject.window)
    if not len(bins):
        return Absent(title, "no step was measured")
    name = OWN if _waits(ranks) else "step"
    mean, longest = _matrix(ranks, name, bins)
    step = _matrix(ranks, "step", bins)[0] if name == OWN else None
    factor = subject.scale.per_second / 1e9
    late = "later than the median rank"
    single = bool((bins.first == bins.last).all())
    measures = [
        (late if single else f"{late} (mean of the bin)", _against_median(mean), True),
        *([] if single else [(f"{late} (longest step of the bin)", _against_median(longest), True)]),
        ("own work" if name == OWN else "the step", mean, False),
        *([("the step", step, False)] if step is not None else []),
    ]
    data = {
        "unit": subject.scale.unit,
        "ranks": [rank.data.rank for rank in ranks],
        "first": bins.first.tolist(),
        "last": bins.last.tolist(),
        "measures": [
            {"label": label, "relative": relative, "rows": [numbers(row * factor, 3) for row in values]}
            for label, values, relative in measures
        ],
    }
    what = "own work, the step less communication," if name == OWN else "step"
    caption = (
        f"Each rank's {what} against the median of the ranks. A rank that does more than the others arrives later, and "
        "they wait for it."
    )
    figure = chart(
        "late", "heat", data, caption=caption, alt=_alt(subject, measures[0][1]), table=_late_table(subject, name),
        height=max(180, min(560, 110 + 26 * len(ranks))), choice=ChartMenu("Show", [m[0] for m in measures]),
    )  # fmt: skip
    return Section("late", title, figure)


def _matrix(ranks: list[RankAnalysis], name: str, bins: object) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the longest of each rank (rows) in each bin (columns), in nanoseconds."""
    found = [binned_mean(rank, bins, _times(rank, name)) for rank in ranks]  # type: ignore[arg-type]
    return np.array([mean for mean, _ in found]), np.array([longest for _, longest in found])


def _against_median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each value minus the median of its column; NaN where no rank has a value."""
    some = ~np.isnan(values).all(axis=0)
    median = np.full(values.shape[1], np.nan)
    median[some] = np.nanmedian(values[:, some], axis=0)
    return np.asarray(values - median)


def _alt(subject: Subject, late: NDArray[np.float64]) -> str:
    filled = np.nan_to_num(late)
    rank, at = np.unravel_index(int(filled.argmax()), filled.shape)
    typical = int(np.nan_to_num(np.nanmean(np.where(np.isnan(late), 0, late), axis=1)).argmax())
    return (
        f"A map of {late.shape[0]} ranks by {count(late.shape[1], 'bin')} of steps. Latest on the whole is rank "
        f"{subject.ranks[typical].data.rank}; the largest single lateness is "
        f"{subject.time(float(filled[rank, at]) / 1e9)} on rank {subject.ranks[int(rank)].data.rank}."
    )


def _late_table(subject: Subject, name: str) -> Html:
    bins = make_bins(subject.steps, TABLE_BINS, subject.window)
    late = _against_median(_matrix(subject.ranks, name, bins)[0])
    rows: list[list[Content]] = [
        [f"rank {rank.data.rank}", *(None if v != v else f"{v * subject.scale.per_second / 1e9:+.2f}" for v in row)]
        for rank, row in zip(subject.ranks, late.tolist(), strict=True)
    ]
    head = ["Rank", *(f"steps {a}-{b}" for a, b in zip(bins.first.tolist(), bins.last.tolist(), strict=True))]
    return table(f"Later than the median rank, in {subject.scale.unit}", head, rows)
