"""The source lines at which batches are made, in the training process or in workers of a loader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddlprof.analysis.sources import Sources, SourceShare, function_of, sources_of
from ddlprof.analysis.thresholds import LINE_SHARE
from ddlprof.analysis.uncertainty import lowest_share
from ddlprof.model.records import Flag
from ddlprof.model.source_locations import DATA_CALLER

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis


@dataclass(frozen=True)
class DataLines:
    """Where batches are made, as shares of the time in which they are."""

    inner: Sources = field(default_factory=lambda: Sources(0, []))
    """The user's innermost lines, or else the functions of packages."""
    outer: Sources = field(default_factory=lambda: Sources(0, []))
    """The user's outermost lines, which call what is in the others."""

    first: Sources = field(default_factory=lambda: Sources(0, []))
    """The places at which the first batches of epochs are made, or what they wait for in this process."""

    @property
    def main(self) -> SourceShare | None:
        """The place with most of the time, if that is sure: a line, or the line that called it, or a function."""
        of_lines = (next((each for each in found.shares if each.sure), None) for found in (self.inner, self.outer))
        return next(filter(None, of_lines), None) or _function(self.inner)


def data_lines(ranks: Sequence[RankAnalysis]) -> DataLines:
    """The lines of these ranks together."""
    return DataLines(
        sources_of(ranks, lambda place: place.is_of_data and place.what != DATA_CALLER),
        sources_of(ranks, lambda place: place.what == DATA_CALLER),
        sources_of(ranks, lambda place: place.is_of_data and place.what != DATA_CALLER, Flag.EPOCH_START),
    )


def _function(found: Sources) -> SourceShare | None:
    """The function that surely has most of the time in several of its lines, as the line with most of it."""
    lines: defaultdict[str, list[SourceShare]] = defaultdict(list)
    for each in found.shares:
        lines[function_of(each.place.text)].append(each)
    shares = {key: sum(line.share for line in of_function) for key, of_function in lines.items()}
    if not shares or found.samples <= 0:
        return None
    most = max(shares, key=lambda key: shares[key])
    sure = lowest_share(shares[most] * found.samples, found.samples) > LINE_SHARE
    return SourceShare(lines[most][0].place, shares[most], True) if sure else None
