"""The source lines on which the time of `other` is spent, by the stack samples of the steady steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlprof.analysis.thresholds import LINE_SAMPLES, LINE_SHARE
from ddlprof.analysis.uncertainty import lowest_share
from ddlprof.model.source_places import SourcePlace

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis


@dataclass(frozen=True)
class SourceShare:
    """A place and its share of the samples."""

    place: SourcePlace
    share: float
    sure: bool
    """Whether the place is surely the one with the largest part of `other`."""


@dataclass(frozen=True)
class Sources:
    """The places, that with most samples first; empty if there are too few samples."""

    samples: int
    shares: list[SourceShare]


def other_sources(ranks: Sequence[RankAnalysis]) -> Sources:
    """The places of these ranks together."""
    counts: Counter[str] = Counter()
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for rank in ranks:
        left_out = set(rank.times.step[~rank.times.steady].tolist())
        for step, place, number in rank.data.samples:
            if step not in left_out:
                counts[place.text] += number
                kinds[place.text][place.what] += number
    samples = counts.total()
    if samples < LINE_SAMPLES:
        return Sources(samples, [])
    shares = [
        SourceShare(SourcePlace(text, _usual(kinds[text])), n / samples, lowest_share(n, samples) > LINE_SHARE)
        for text, n in counts.most_common()
    ]
    return Sources(samples, shares)


def _usual(kinds: Counter[str]) -> str:
    ((what, _),) = kinds.most_common(1)
    return what
