"""Means over the steady steps of one or more ranks: the headline numbers.

The means of the classes add up to the mean step. The means include steps that were kept only as exact sums
(`Aggregate`). Median and 95th percentile are of the steps that were kept as rows, and only show the spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.dimensions import COLUMNS, SHOWN, column_name
from ddlprof.model.classes import CLASSES, COMM_PARTS, OPTIONAL, PARTS, TIMES
from ddlprof.model.records import MISSING, Aggregate

_WHOLE = frozenset(map(column_name, SHOWN))
"""The names of the communication of whole dimensions."""
MIN_SPLIT_SHARE = 0.9  # parts of a class are given where they are known for this share of its time


@dataclass(frozen=True)
class RankTimes:
    """The steps of one rank, one element per step. `times` has nanoseconds by name, MISSING where not measured."""

    step: NDArray[np.int64]
    times: dict[str, NDArray[np.int64]]
    steady: NDArray[np.bool_]
    aggregates: Sequence[Aggregate] = ()
    profiled: NDArray[np.bool_] | None = None
    """The steps in profiler windows. They give the parts of communication where the steady steps do not have them."""
    dimensions: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """The communication of each dimension and its parts (`CommParts.by_dimension`)."""

    @property
    def has_loader(self) -> bool:
        """Whether most steps took a batch from a loader, and not some alone, as to look at a held-out one."""
        data = self.times["data"]
        return 2 * np.count_nonzero(data > 0) > len(data) or any(a.data_ns for a in self.aggregates)


@dataclass(frozen=True)
class Spread:
    """The mean and the spread of one time over the steady steps. None: not measured."""

    mean_ns: float | None
    median_ns: float | None = None
    p95_ns: float | None = None
    standard_error_ns: float | None = None


@dataclass(frozen=True)
class Summary:
    """The mean and the spread of every time of `TIMES` over the steady steps of one or more ranks."""

    spreads: dict[str, Spread]
    steady_steps: int
    """The number of steps of all ranks together, including those kept only as sums."""
    left_out: int
    """The number of steady steps that the means exclude, because other classes were measured in them than in most."""
    dimensions: dict[str, Spread] = field(default_factory=dict)
    """The communication by dimension, under the names of `dimensions.COLUMNS`; empty if no dimension is known."""

    def mean_ns(self, name: str) -> float | None:
        """The mean of a time in ns; None: not measured."""
        return self.spreads[name].mean_ns

    def share(self, name: str) -> float | None:
        """The mean as a share of the mean step; None: not measured."""
        mean, step = self.mean_ns(name), self.mean_ns("step")
        return mean / step if mean is not None and step else None


def summarise(ranks: Sequence[RankTimes], means_only: bool = False) -> Summary:
    """The means over the steady steps of these ranks, with their spread unless `means_only`."""
    ranks = _without_loaders(ranks)
    measured, alike = _usual_pattern(ranks)

    def column(name: str) -> NDArray[np.int64]:
        return _joined(rank.times[name][keep] for rank, keep in zip(ranks, alike, strict=True))

    aggregates = [a for rank in ranks for a in rank.aggregates]
    usable = [a for a in aggregates if _measured_in(a) == measured]
    rows = sum(int(np.count_nonzero(keep)) for keep in alike)
    steady_rows = sum(int(np.count_nonzero(rank.steady)) for rank in ranks)
    count = rows + sum(a.steps for a in usable)
    left_out = steady_rows + sum(a.steps for a in aggregates) - count
    if not count:
        return Summary({name: Spread(None) for name in TIMES}, 0, left_out)
    means: dict[str, float | None] = {}
    for name in ("step", *CLASSES):
        if name in OPTIONAL and name not in measured:
            means[name] = None
        else:
            summed = sum(getattr(a, f"{name}_ns") for a in usable)
            means[name] = (int(column(name).sum()) + summed) / count
    for name, parts in PARTS.items():
        means |= _part_means(means[name], column(name), {part: column(part) for part in parts})
    profiled = _profiled(ranks) if all(means[part] is None for part in COMM_PARTS) else None
    if profiled is not None:
        means |= _part_means(means["comm"], *_comm_of(ranks, profiled))
    if means_only:
        return Summary({name: Spread(means[name]) for name in TIMES}, count, left_out)
    by_dimension = dimension_means(means["comm"], ranks, alike if profiled is None else profiled)
    step = _joined(rank.step[keep] for rank, keep in zip(ranks, alike, strict=True))
    _, index = np.unique(step, return_inverse=True)
    spreads = {name: _spread(means[name], column(name), index) for name in TIMES}
    dimensions = {
        name: _spread(mean, dimension_column(ranks, alike, name), index) for name, mean in by_dimension.items()
    }
    return Summary(spreads, count, left_out, dimensions)


def by_step(ranks: Sequence[RankTimes]) -> dict[str, NDArray[np.float64]]:
    """For every time of `TIMES`, its mean over the ranks in each step, in nanoseconds and in order of the steps.

    Only the steady steps that `summarise` averages count. A step in which a time was not measured has no element.
    """
    ranks = _without_loaders(ranks)
    _, alike = _usual_pattern(ranks)
    step = _joined(rank.step[keep] for rank, keep in zip(ranks, alike, strict=True))
    numbers, index = np.unique(step, return_inverse=True)

    def series(name: str) -> NDArray[np.float64]:
        values = _joined(rank.times[name][keep] for rank, keep in zip(ranks, alike, strict=True))
        known = values != MISSING
        count = np.bincount(index[known], minlength=len(numbers))
        summed = np.bincount(index[known], weights=values[known], minlength=len(numbers))
        return np.asarray(summed[count > 0] / count[count > 0])

    return {name: series(name) for name in TIMES}


def _joined(columns: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([*columns, np.zeros(0, dtype=np.int64)])


def _without_loaders(ranks: Sequence[RankTimes]) -> Sequence[RankTimes]:
    """The same, where a rank that has no loader, beside others that do, waits for none: it is sent its batches, as
    by a rank that reads those of all, or needs none, as a later stage of a pipeline."""
    has = [each.has_loader for each in ranks]
    if all(has) or not any(has):
        return ranks
    return [
        rank
        if loads
        else replace(
            rank,
            times=rank.times | {"data": np.where(rank.times["data"] == MISSING, 0, rank.times["data"])},
            aggregates=[replace(a, data_ns=a.data_ns or 0) for a in rank.aggregates],
        )
        for rank, loads in zip(ranks, has, strict=True)
    ]


def _usual_pattern(ranks: Sequence[RankTimes]) -> tuple[frozenset[str], list[NDArray[np.bool_]]]:
    """The classes measured in most steady steps, and a mask for each rank of the steady steps with exactly those.

    The time of an unmeasured class is in another class, so steps with different measured classes have no common mean.
    """
    patterns = [
        sum(((rank.times[name] != MISSING).astype(np.int64) << bit for bit, name in enumerate(OPTIONAL)), start=0)
        for rank in ranks
    ]
    counts = np.zeros(1 << len(OPTIONAL), dtype=np.int64)
    for rank, pattern in zip(ranks, patterns, strict=True):
        counts += np.bincount(pattern[rank.steady], minlength=len(counts))
    usual = int(np.argmax(counts))
    alike = [rank.steady & (pattern == usual) for rank, pattern in zip(ranks, patterns, strict=True)]
    return frozenset(n for bit, n in enumerate(OPTIONAL) if usual >> bit & 1), alike


def _measured_in(aggregate: Aggregate) -> frozenset[str]:
    return frozenset(name for name in OPTIONAL if getattr(aggregate, f"{name}_ns") is not None)


def _part_means(
    class_mean: float | None, class_ns: NDArray[np.int64], parts: dict[str, NDArray[np.int64]]
) -> dict[str, float | None]:
    """The mean of each part: its share of the class in the steps where the split is known, times the class's mean."""
    all_known = np.all([part != MISSING for part in parts.values()], axis=0)
    means: dict[str, float | None] = {}
    for name, part in parts.items():
        known = all_known if _covers(all_known, class_ns) else part != MISSING
        if class_mean is None or not _covers(known, class_ns):
            means[name] = None
        else:
            means[name] = class_mean * int(part[known].sum()) / max(int(class_ns[known].sum()), 1)
    return means


def _profiled(ranks: Sequence[RankTimes]) -> list[NDArray[np.bool_]] | None:
    """A mask for each rank of its steps in profiler windows; None unless each rank has some."""
    masks = [rank.profiled & (rank.times["comm"] != MISSING) for rank in ranks if rank.profiled is not None]
    return masks if len(masks) == len(ranks) and all(mask.any() for mask in masks) else None


def _comm_of(
    ranks: Sequence[RankTimes], masks: Sequence[NDArray[np.bool_]]
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """Communication and its parts in these steps."""

    def column(name: str) -> NDArray[np.int64]:
        return _joined(rank.times[name][mask] for rank, mask in zip(ranks, masks, strict=True))

    return column("comm"), {part: column(part) for part in COMM_PARTS}


def dimension_means(
    comm_mean: float | None, ranks: Sequence[RankTimes], masks: Sequence[NDArray[np.bool_]]
) -> dict[str, float | None]:
    """The means of the communication of every dimension and of its parts, by the names of `dimensions.COLUMNS`.

    Those of the dimensions add up to `comm_mean`, and the parts of a dimension to its own: all are shares of the same
    steps, those in which communication is split, if these suffice.
    """
    present = [name for name in COLUMNS if any(name in rank.dimensions for rank in ranks)]
    comm, parts = _comm_of(ranks, masks)
    columns = {name: dimension_column(ranks, masks, name) for name in present}
    told = np.all([columns[name] != MISSING for name in present if name in _WHOLE], axis=0) & (comm != MISSING)
    everything = told & np.all([part != MISSING for part in parts.values()], axis=0)
    waits = told & (parts["straggler"] != MISSING)
    known = next((mask for mask in (everything, waits) if _covers(mask, comm)), told)
    if not present or comm_mean is None or not _covers(known, comm):
        return {}
    of_comm = max(int(comm[known].sum()), 1)
    return {
        name: comm_mean * int(values[known].sum()) / of_comm if (values[known] != MISSING).all() else None
        for name, values in columns.items()
    }


def dimension_column(ranks: Sequence[RankTimes], masks: Sequence[NDArray[np.bool_]], name: str) -> NDArray[np.int64]:
    """A column of a dimension in the masked steps of all ranks: 0 where a rank communicates, but not along it."""

    def of_rank(rank: RankTimes) -> NDArray[np.int64]:
        if name in rank.dimensions:
            return rank.dimensions[name]
        part = next((part for part in COMM_PARTS if name.endswith(f"_{part}")), "comm")
        return np.where(rank.times[part] == MISSING, MISSING, 0)

    return _joined(of_rank(rank)[mask] for rank, mask in zip(ranks, masks, strict=True))


def _covers(known: NDArray[np.bool_], class_ns: NDArray[np.int64]) -> bool:
    return bool(known.any()) and int(class_ns[known].sum()) >= MIN_SPLIT_SHARE * int(class_ns.sum())


def _spread(mean: float | None, values: NDArray[np.int64], step: NDArray[np.int64]) -> Spread:
    values, step = values[values != MISSING], step[values != MISSING]
    if mean is None or not len(values):
        return Spread(mean)
    median, p95 = np.percentile(values, [50, 95])
    return Spread(mean, float(median), float(p95), _standard_error(values, step))


def _standard_error(values: NDArray[np.int64], step: NDArray[np.int64]) -> float | None:
    """The standard error of the mean. The ranks of a step count as one observation, as they wait for each other."""
    ranks = np.bincount(step)
    observed = ranks > 0
    if np.count_nonzero(observed) < 2:
        return None
    by_step = np.bincount(step, weights=values)[observed] / ranks[observed]
    return float(by_step.std(ddof=1) / np.sqrt(len(by_step)))
