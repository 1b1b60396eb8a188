"""Simulations as plain text, and the words and figures that the HTML page shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ddlprof.base.text import text_of
from ddlprof.base.units import count, listed, percent, significant
from ddlprof.extensions.cluster.report import profile as past
from ddlprof.extensions.cluster.report.data import (
    FigureLine,
    PolicyComparison,
    PolicyLine,
    SimulatedData,
    SimulationQuestion,
)
from ddlprof.report.text import aligned, labelled, wrapped

_HOURS_FROM_S, _MINUTES_FROM_S = 7200.0, 120.0
_WIDTH = 100
_labelled = partial(labelled, width=_WIDTH)
_BEST = "*"


@dataclass(frozen=True)
class Measure:
    """A figure of the tables."""

    name: str
    head: str
    words: str
    unit: str | None = ""
    """The unit; None: the figure is a time, in the unit of the page."""
    factor: float = 1.0
    """The factor that turns the figure into its unit."""
    is_count: bool = False


TIMES = (
    Measure("completion_mean_s", "MEAN", "mean completion time of jobs, from submission to end", None),
    Measure("completion_median_s", "MEDIAN", "their median", None),
    Measure("completion_p95_s", "P95", "their 95th percentile", None),
    Measure("wait_mean_s", "WAIT", "mean time without GPUs, before the first start and between", None),
    Measure("wait_longest_s", "LONGEST", "the longest such time of a job", None),
    Measure("makespan_s", "MAKESPAN", "from the first submission to the last end", None),
)
USE = (
    Measure("gpu_hours", "GPU-h", "GPU-hours held, restarts included"),
    Measure("comm_gpu_hours", "COMM GPU-h", "those in exposed communication"),
    Measure("used", "IN USE", "share of all GPUs that was held, over the makespan", "%", 100),
    Measure("stops", "STOPS", "how often jobs were stopped or moved", is_count=True),
    Measure("jain", "FAIRNESS", "Jain's index of the slowdowns: 1 if all jobs are slowed down alike"),
    Measure(
        "unfair", "WORSE OFF", "share of jobs for which an equal share of the cluster were better (Themis)", "%", 100
    ),
)


@dataclass(frozen=True)
class TimeUnit:
    """One unit for all the times of a page, so that they can be compared."""

    name: str
    seconds: float
    long_name: str


def time_unit(data: SimulatedData) -> TimeUnit:
    """The largest unit of time that suits the shortest mean completion time."""
    shortest_s = min(block.best.mean_s for block in data.blocks)
    if shortest_s >= _HOURS_FROM_S:
        return TimeUnit("h", 3600.0, "hours")
    return TimeUnit("min", 60.0, "minutes") if shortest_s >= _MINUTES_FROM_S else TimeUnit("s", 1.0, "seconds")


def head(column: Measure, unit: TimeUnit) -> str:
    """The name of a column with its unit."""
    return " ".join(word for word in (column.head, unit.name if column.unit is None else column.unit) if word)


def cells(column: Measure, lines: Sequence[PolicyLine], unit: TimeUnit) -> list[str]:
    """A figure of all policies of a block, with as many decimals as the largest needs."""
    factor = 1 / unit.seconds if column.unit is None else column.factor
    figures = [line.figures[column.name] for line in lines]
    largest = max(abs(figure.mean or 0.0) * factor for figure in figures)
    are_whole = column.is_count and all((figure.mean or 0.0).is_integer() and not figure.sd for figure in figures)
    decimals = 0 if largest >= 1000 or are_whole else 1 if largest >= 100 else 2
    return [_cell(figure, factor, decimals) for figure in figures]


def _cell(figure: FigureLine, factor: float, decimals: int) -> str:
    if figure.mean is None:
        return "-"
    text = f"{figure.mean * factor:,.{decimals}f}"
    return text if figure.sd is None else f"{text} ±{figure.sd * factor:,.{decimals}f}"


def title(block: PolicyComparison) -> str:
    """The load and the share of predictable jobs that distinguish a block."""
    words = []
    if block.load is not None:
        words.append(f"load {block.load:g}")
    elif block.offered_load is not None:
        words.append(f"load {significant(block.offered_load, 2)} as submitted")
    if block.predictable is not None:
        words.append(f"{percent(block.predictable)} of the jobs predictable")
    return ", ".join(words) or "all jobs submitted at once"


def verdict(block: PolicyComparison, seeds: int, unit: TimeUnit) -> str:
    """The policy with the shortest mean completion time in a sentence, and how much longer the others take."""
    ordered = sorted(block.policies, key=lambda line: line.mean_s)
    best = ordered[0]
    mean = f"{significant(best.mean_s / unit.seconds, 4)} {unit.name}"
    if len(ordered) == 1:
        return f"{best.policy} has a mean completion time of {mean}"
    first = block.winners
    if not first:
        return f"all policies have the same mean completion time, {mean}"
    rest = [f"{line.policy} {percent(line.above_best)} longer" for line in ordered[len(first) :]]
    has = f"{first[0]} has" if len(first) == 1 else f"{', '.join(first[:-1])} and {first[-1]} have"
    often = f", in {best.wins} of {seeds} seeds" if seeds > 1 else ""
    return f"{has} the shortest mean completion time, {mean}{often}; {listed(rest, most=3)}"


def described(question: SimulationQuestion) -> Iterator[str]:
    """The jobs and the cluster, in a few words each."""
    yield question.trace
    yield count(question.jobs, "job")
    if question.asked_gpu_hours is not None:
        yield f"{significant(question.asked_gpu_hours)} GPU-hours"
    yield f"{count(question.machines, 'machine')} in {count(question.racks, 'rack')}, {count(question.gpus, 'GPU')}"
    if question.gpu_models:
        yield listed(question.gpu_models)


def render(data: SimulatedData) -> str:
    """The page, ending with a line end."""
    unit = time_unit(data)
    seeds = len(data.question.seeds)
    lines = _labelled("ddlprof", f"cluster simulate {' · '.join(described(data.question))}")
    lines.append("")
    if data.question.past is not None and data.question.past.wait_median_s is not None:
        lines += [*_labelled("Past", *(f"{name}: {text}" for name, text in past.facts(data.question.past))), ""]
    for block in data.blocks:
        lines += [*_labelled("Case", title(block))]
        lines += [*_labelled("Best", verdict(block, seeds, unit)), ""]
        lines += [*_table(TIMES, block, unit), "", *_table(USE, block, unit), ""]
    spread = f" ± standard deviation over {seeds} seeds." if seeds > 1 else ""
    legend = "; ".join(f"{column.head} {column.words}" for column in (*TIMES, *USE))
    lines += [*wrapped(f"{_BEST} the best.{spread} {legend}.", _WIDTH), ""]
    for note in data.question.notes:
        lines += _labelled("Note", note)
    return text_of(lines)


def _table(columns: Sequence[Measure], block: PolicyComparison, unit: TimeUnit) -> Iterator[str]:
    marked = [
        [
            f"{cell}{_BEST if line.figures[column.name].is_best else ' '}"
            for cell, line in zip(cells(column, block.policies, unit), block.policies, strict=True)
        ]
        for column in columns
    ]
    heads = ["POLICY", *(f"{head(column, unit)} " for column in columns)]
    rows = [[line.policy, *cells] for line, cells in zip(block.policies, zip(*marked, strict=True), strict=True)]
    yield from aligned([heads, *rows], right=range(1, len(heads)))
