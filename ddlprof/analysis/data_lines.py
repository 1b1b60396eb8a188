"""The source lines at which batches are made, in the training process or in workers of a loader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddlprof.analysis.sources import MORE_THAN_A_LINE, Sources, SourceShare, function_of, number_of, sources_of
from ddlprof.analysis.thresholds import LINE_SHARE, SEEN_SAMPLES
from ddlprof.analysis.uncertainty import lowest_share
from ddlprof.model.records import Flag
from ddlprof.model.source_locations import (
    DATA_CALLER,
    NESTED,
    PER_SAMPLE,
    TENSOR,
    SourceLocation,
    in_data,
    in_turns,
)

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis


_SEEN_SHARE = 0.25
"""The part that a line before the tensor of a sample has at least of the tensor's share, so that it may well have most
of both: where the tensor lets the interpreter's lock go, looks on a busy machine get in a hundred times as easily."""


_UNKNOWN = (in_data(""), in_data(TENSOR))
_EASILY_SEEN = (*_UNKNOWN, in_data(PER_SAMPLE))
_IN_TURNS = tuple(map(in_data, in_turns()))
_BY_ITSELF = (*_IN_TURNS, in_data(NESTED))
"""What is told with a third, beside lines that looks fall on more easily."""


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
        """The place with most of the time, if that is sure: a line, or the line that called it, or a function; what is
        known of a third for certain, beside more at which looks fall more easily."""
        inner, outer = (next((each for each in found.shares if each.sure), None) for found in (self.inner, self.outer))
        if inner is not None and inner.place.what in _EASILY_SEEN:
            known = (each for each in self.inner.shares if each.sure and each.place.what in _BY_ITSELF)
            if told := next(known, None) or self._chain(inner):
                return told
        function = (self._before_tensor(inner) or self._function_around(inner)) if inner is not None else None
        return function or inner or outer or _function(self.inner)

    def _chain(self, line: SourceShare) -> SourceShare | None:
        """The chain of data sets that was seen beside code that takes single samples, which then takes them of it."""
        chain = next((each for each in self.inner.shares if each.place.what == in_data(NESTED)), None)
        if chain is None or line.place.what != in_data(PER_SAMPLE) or chain.share < _SEEN_SHARE * line.share:
            return None
        return replace(chain, sure=True) if round(chain.share * self.inner.samples) >= SEEN_SAMPLES else None

    def _before_tensor(self, line: SourceShare) -> SourceShare | None:
        """The lines from the one whose work is known up to the tensor that is made of it, together: looks do not tell
        their times apart."""
        name, number = function_of(line.place.text), number_of(line.place.text)
        if line.place.what != in_data(TENSOR) or number is None:
            return None
        apart = (*_UNKNOWN, *_IN_TURNS)  # what is done in turns is no part of waiting for that
        alike = (each for each in self.inner.shares if function_of(each.place.text) == name)
        lines = {at: each for each in alike if (at := number_of(each.place.text)) is not None and at <= number}
        known = {at: each for at, each in lines.items() if at < number and each.place.what not in apart}
        first = max(known, key=lambda at: known[at].share, default=None)
        if first is None or round(known[first].share * self.inner.samples) < SEEN_SAMPLES:
            return None
        unknown = [each.share for at, each in lines.items() if at < number and at not in known]
        if known[first].share < max([*unknown, _SEEN_SHARE * line.share]):
            return None
        share = sum(each.share for at, each in lines.items() if at >= first)
        file, _, function = name.rpartition(" ")
        return SourceShare(SourceLocation(f"{file}:{first}-{number} {function}", known[first].place.what), share, True)

    def _function_around(self, line: SourceShare) -> SourceShare | None:
        """The function that has more than the line, where it is not known what the line does: a look falls on the
        lines of a function that let the interpreter's lock go."""
        if line.place.what not in _UNKNOWN:
            return None
        name = function_of(line.place.text)
        inside = [each for each in self.inner.shares if function_of(each.place.text) == name]
        share, known = sum(each.share for each in inside), defaultdict[str, float](float)
        for each in inside:
            known[each.place.what] += each.share
        around = next((each for each in self.inner.wider if function_of(each.place.text) == name), None)
        if around is None or share < MORE_THAN_A_LINE * line.share:
            return None
        works = [what for what, part in known.items() if what not in _UNKNOWN and part >= LINE_SHARE * share]
        what = max(works, key=known.__getitem__, default=in_data(""))
        if what in _IN_TURNS:
            return max((each for each in inside if each.place.what == what), key=lambda each: each.share)
        return replace(around, place=around.place._replace(what=what))


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
        if each.place.what not in _IN_TURNS:
            lines[function_of(each.place.text)].append(each)
    shares = {key: sum(line.share for line in of_function) for key, of_function in lines.items()}
    if not shares or found.samples <= 0:
        return None
    most = max(shares, key=lambda key: shares[key])
    sure = lowest_share(shares[most] * found.samples, found.samples) > LINE_SHARE
    return SourceShare(lines[most][0].place, shares[most], True) if sure else None
