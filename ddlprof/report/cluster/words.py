"""Simulations in words and figures for people: shared by the table and the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddlprof.report.cluster.data import HEADLINE, Block, FigureLine, PolicyLine, Question, SimulatedData
from ddlprof.report.units import count, listed, percent

_HOURS_FROM_S, _MINUTES_FROM_S = 7200.0, 120.0


@dataclass(frozen=True)
class Column:
    """A figure of the table."""

    name: str
    head: str
    words: str
    unit: str | None
    """None: a time, in the unit of the page."""
    per_unit: float = 1.0
    """What the figure is multiplied with for its unit."""


COLUMNS = (
    Column("mean_completion_s", "MEAN", "mean completion time of jobs, from submission to end", None),
    Column("median_completion_s", "MEDIAN", "the median of it", None),
    Column("p95_completion_s", "P95", "its 95th percentile", None),
    Column("mean_queueing_s", "QUEUED", "mean time without GPUs, before the first start and between", None),
    Column("makespan_s", "MAKESPAN", "from the first submission to the last end", None),
    Column("gpu_h", "GPU-h", "GPU-hours held, restarts included", ""),
    Column("comm_gpu_h", "COMM GPU-h", "those in exposed communication", ""),
    Column("utilisation", "IN USE", "GPU-hours held over those of the makespan", "%", 100),
    Column("restarts", "RESTARTS", "starts of jobs after their first", ""),
)


@dataclass(frozen=True)
class TimeUnit:
    """One unit for all the times of a page, so that they can be compared."""

    name: str
    seconds: float


def time_unit(data: SimulatedData) -> TimeUnit:
    """The unit in which the shortest mean completion time has digits."""
    shortest_s = min(line.figures[HEADLINE].mean for block in data.blocks for line in block.policies)
    if shortest_s >= _HOURS_FROM_S:
        return TimeUnit("h", 3600.0)
    return TimeUnit("min", 60.0) if shortest_s >= _MINUTES_FROM_S else TimeUnit("s", 1.0)


def head(column: Column, unit: TimeUnit) -> str:
    """The name of a column with its unit."""
    return " ".join(word for word in (column.head, unit.name if column.unit is None else column.unit) if word)


def cells(column: Column, lines: Sequence[PolicyLine], unit: TimeUnit) -> list[str]:
    """A figure of all policies of a block, with as many decimals as the largest needs."""
    factor = 1 / unit.seconds if column.unit is None else column.per_unit
    figures = [line.figures[column.name] for line in lines]
    largest = max(abs(figure.mean) * factor for figure in figures)
    are_whole = largest >= 1000 or (column.name == "restarts" and _are_whole(figures))
    decimals = 0 if are_whole else 1 if largest >= 100 else 2
    return [_cell(figure, factor, decimals) for figure in figures]


def _are_whole(figures: Sequence[FigureLine]) -> bool:
    return all(figure.mean.is_integer() and not figure.sd for figure in figures)


def _cell(figure: FigureLine, factor: float, decimals: int) -> str:
    text = f"{figure.mean * factor:,.{decimals}f}"
    return text if figure.sd is None else f"{text} ±{figure.sd * factor:,.{decimals}f}"


def title(block: Block) -> str:
    """What tells a block from the others."""
    words = []
    if block.load is not None:
        words.append(f"load {block.load:g}")
    elif block.offered_load is not None:
        words.append(f"load {block.offered_load:.2g} as submitted")
    if block.predictable is not None:
        words.append(f"{percent(block.predictable)} of the jobs predictable")
    return ", ".join(words)


def verdict(block: Block, seeds: int, unit: TimeUnit) -> str:
    """Which policy has the shortest mean completion time, and how far the next is."""
    ordered = sorted(block.policies, key=lambda line: line.above_best)
    best = ordered[0]
    mean = f"{best.figures[HEADLINE].mean / unit.seconds:,.4g} {unit.name}"
    if len(ordered) == 1:
        return f"{best.policy} has a mean completion time of {mean}"
    equal = [line.policy for line in ordered if not line.above_best]
    if len(equal) == len(ordered):
        return f"all policies have the same mean completion time, {mean}"
    rest = [line for line in ordered if line.above_best]
    others = listed([f"{line.policy} {percent(line.above_best)} longer" for line in rest], most=3)
    often = f", in {best.wins} of {seeds} seeds" if seeds > 1 else ""
    return f"{' and '.join(equal)} has the shortest mean completion time, {mean}{often}; {others}"


def described(question: Question) -> Iterator[str]:
    """The jobs and the cluster, in a few words each."""
    yield question.trace
    yield count(question.jobs, "job")
    if question.asked_gpu_h is not None:
        yield f"{question.asked_gpu_h:,.1f} GPU-hours"
    yield f"{count(question.machines, 'machine')} in {count(question.racks, 'rack')}, {count(question.gpus, 'GPU')}"
    if question.gpu_models:
        yield listed(question.gpu_models)
