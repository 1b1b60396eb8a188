"""The source lines on which the time of `other` or of making batches is spent, by stack samples of steady steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.thresholds import LINE_SAMPLES, LINE_SHARE
from ddlprof.analysis.uncertainty import lowest_share
from ddlprof.model.records import Flag
from ddlprof.model.source_locations import SourceLocation
from ddlprof.model.stack_samples import sparseness

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis
    from ddlprof.store import RankData


@dataclass(frozen=True)
class SourceShare:
    """A place and its share of the time that the samples stand for."""

    place: SourceLocation
    share: float
    sure: bool
    """Whether the place is surely the one with the largest part of `other`."""


@dataclass(frozen=True)
class Sources:
    """The places, that with most time first; empty if there are too few samples."""

    samples: int
    shares: list[SourceShare]


def other_sources(ranks: Sequence[RankAnalysis]) -> Sources:
    """The places of `other` of these ranks together."""
    return sources_of(ranks, lambda place: not place.is_of_data)


def sources_of(
    ranks: Sequence[RankAnalysis], wanted: Callable[[SourceLocation], bool], flag: Flag | None = None
) -> Sources:
    """Such places of these ranks together. The later a sample, the more time it stands for (`sparseness`).

    `flag`: of the steps with it, in place of the steady ones.
    """
    time: defaultdict[str, float] = defaultdict(float)
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    samples, of_squares = 0, 0.0
    for rank in ranks:
        usual = rank.times.steady if flag is None else rank.flags & int(flag) != 0
        left_out = set(rank.times.step[~usual].tolist())
        kept = [each for each in rank.data.samples if each[0] not in left_out and wanted(each[1])]
        for (_, place, number), weight in zip(kept, _weights(rank.data, [step for step, _, _ in kept]), strict=True):
            time[place.text] += number * weight
            kinds[place.text][place.what] += number
            samples += number
            of_squares += number * weight**2
    if samples < LINE_SAMPLES:
        return Sources(samples, [])
    total = sum(time.values())
    alike = total**2 / of_squares  # so many samples that stand for equal times would be as sure
    shares = [
        SourceShare(
            SourceLocation(text, _usual(kinds[text])), n / total, lowest_share(n / total * alike, alike) > LINE_SHARE
        )
        for text, n in sorted(time.items(), key=lambda each: -each[1])
    ]
    return Sources(samples, shares)


def _weights(rank: RankData, steps: list[int]) -> list[float]:
    """How much each sample of these steps counts."""
    table = rank.steps
    if not len(table):
        return [1.0] * len(steps)
    number, start_ns = table["step"], table["start_ns"]
    first_ns = start_ns[0] if number[0] == 0 else 0  # a run that is followed has only its latest steps here
    since_s = (np.interp(steps, number, start_ns) - first_ns) / 1e9
    return [sparseness(each) for each in since_s.tolist()]


def _usual(kinds: Counter[str]) -> str:
    ((what, _),) = kinds.most_common(1)
    return what
