"""Groups neighbouring steps of a run into bins, so that a picture can show any number of them.

Sums are exact: the mean of a bin is the mean of all its steps, including those kept only as sums. The shortest and the
longest step of each bin are kept as well, so that no outlier is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.classes import CLASSES, COMM_PARTS
from ddlprof.model.records import MISSING

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis
    from ddlprof.store import IntArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Bins:
    """Step numbers in bins: the first and the last number of each."""

    first: IntArray
    last: IntArray

    def __len__(self) -> int:
        return len(self.first)

    def of(self, steps: IntArray) -> IntArray:
        """The bin of each step. Steps outside all bins count for the nearest one."""
        return np.clip(np.searchsorted(self.first, steps, side="right") - 1, 0, len(self) - 1)


@dataclass(frozen=True)
class BinnedSteps:
    """The steps of one or more ranks, one value for each bin, in ns; NaN where nothing was measured."""

    bins: Bins
    steps: IntArray
    """The number of steps of all ranks in the bin."""
    mean_ns: dict[str, FloatArray]
    """For the step, each class and each part of communication, the mean over all these steps."""
    shortest_ns: FloatArray
    longest_ns: FloatArray


def make_bins(steps: IntArray, most: int, window: tuple[int | None, int | None] = (None, None)) -> Bins:
    """At most `most` bins with equally many of the ordered `steps`, from `window[0]` to before `window[1]`."""
    first, end = window
    steps = steps[(steps >= (first or 0)) & (steps < (end if end is not None else np.iinfo(np.int64).max))]
    if not len(steps):
        return Bins(steps, steps)
    begins = np.arange(0, len(steps), -(-len(steps) // most))
    ends = np.append(begins[1:], len(steps)) - 1
    return Bins(steps[begins], steps[ends])


def bin_steps(ranks: Sequence[RankAnalysis], bins: Bins) -> BinnedSteps:
    """The steps of these ranks by bin."""
    size = len(bins)
    names = ("step", *CLASSES, *COMM_PARTS)
    sums = {name: np.zeros(size) for name in names}
    measured = {name: np.zeros(size, dtype=bool) for name in names}
    count = np.zeros(size, dtype=np.int64)
    shortest, longest = np.full(size, np.inf), np.full(size, -np.inf)
    for rank in ranks:
        inside = _inside(bins, rank.times.step)
        of = bins.of(rank.times.step[inside])
        count += np.bincount(of, minlength=size)
        step = rank.times.times["step"][inside].astype(np.float64)
        np.minimum.at(shortest, of, step)
        np.maximum.at(longest, of, step)
        for name in names:
            values = rank.times.times[name][inside]
            known = values != MISSING
            sums[name] += np.bincount(of, weights=np.where(known, values, 0), minlength=size)
            measured[name] |= np.bincount(of[known], minlength=size) > 0
        count += _add_sums(rank, bins, sums, measured)
    mean = {name: np.where(measured[name], sums[name] / np.maximum(count, 1), np.nan) for name in names}
    empty = ~np.isfinite(shortest)
    return BinnedSteps(bins, count, mean, np.where(empty, np.nan, shortest), np.where(empty, np.nan, longest))


def binned_mean(rank: RankAnalysis, bins: Bins, values: IntArray) -> tuple[FloatArray, FloatArray]:
    """For each bin the mean and the largest of a value that each step of the rank has; NaN in bins without steps."""
    inside = _inside(bins, rank.times.step) & (values != MISSING)
    of = bins.of(rank.times.step[inside])
    count = np.bincount(of, minlength=len(bins))
    sums = np.bincount(of, weights=values[inside], minlength=len(bins))
    largest = np.full(len(bins), -np.inf)
    np.maximum.at(largest, of, values[inside].astype(np.float64))
    some = count > 0
    return np.where(some, sums / np.maximum(count, 1), np.nan), np.where(some, largest, np.nan)


def _add_sums(
    rank: RankAnalysis, bins: Bins, sums: dict[str, FloatArray], measured: dict[str, NDArray[np.bool_]]
) -> IntArray:
    """Adds sums of steps without rows to the bins in which they begin. Returns the number of such steps by bin."""
    count = np.zeros(len(bins), dtype=np.int64)
    for aggregate in rank.data.aggregates:
        first = np.array([aggregate.first_step], dtype=np.int64)
        if not _inside(bins, first)[0]:
            continue
        at = int(bins.of(first)[0])
        count[at] += aggregate.steps
        for name in ("step", *CLASSES):
            value = getattr(aggregate, f"{name}_ns")
            if value is not None:
                sums[name][at] += value
                measured[name][at] = True
    return count


def _inside(bins: Bins, steps: IntArray) -> NDArray[np.bool_]:
    if not len(bins):
        return np.zeros(len(steps), dtype=bool)
    return np.asarray((steps >= bins.first[0]) & (steps <= bins.last[-1]))
