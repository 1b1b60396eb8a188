"""The source lines on which the time of `other` or of making batches is spent, and the loops in which computing is, by
the stack samples of the steady steps.

A helper that is called from many lines, or a function with several lines, is a vote for the function around it, and for
the line of the training loop that led there.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ddlprof.analysis.thresholds import LINE_SAMPLES, LINE_SHARE, TURN_SHARE
from ddlprof.analysis.uncertainty import lowest_share
from ddlprof.model.records import Flag
from ddlprof.model.source_locations import (
    BETWEEN,
    CHECKPOINT,
    CONSTANT,
    DATA_CALLER,
    DECOMPOSES,
    DERIVES,
    DERIVES_EACH,
    EACH,
    EVALUATION,
    FORWARD,
    LOGGING,
    LOOP,
    MODULE,
    ONE_HOT,
    OWN_LOOP,
    PARAMETRIZED,
    PLOT,
    PRECONDITIONS,
    ROLLOUT,
    START,
    START_ITEMS,
    START_WAITS,
    STEPPING,
    UPDATE,
    SourceLocation,
)
from ddlprof.model.stack_samples import START_LOOK_S, sparseness

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis
    from ddlprof.store import RankData

_Sampled: TypeAlias = tuple[int, SourceLocation, int]
"""A step, a place, and how often the thread was seen there in the step."""

_INSIDE = re.compile(r"(\.<(listcomp|setcomp|dictcomp|genexpr|lambda)>)+$")
"""The end of the name of a comprehension."""
_NUMBERS = re.compile("[0-9]+(-[0-9]+)?")
_LOOPS = (LOOP, EACH, OWN_LOOP)
MORE_THAN_A_LINE = 1.25
"""A function is told in place of its line if it takes this much more time, for the same kind of work."""


@dataclass(frozen=True)
class SourceShare:
    """A place and its share of the time that the samples stand for."""

    place: SourceLocation
    share: float
    sure: bool
    """Whether the place is surely the one with the largest part of `other`."""
    kinds: dict[str, float] = field(default_factory=dict)
    """Its parts by kind of work, which add up to its share; empty: all of it is of its place's."""

    def of(self, what: str) -> float:
        """Its share by this kind of work alone."""
        return self.kinds.get(what, 0.0) if self.kinds else self.share * (self.place.what == what)


@dataclass(frozen=True)
class Sources:
    """The places, that with most time first; empty if there are too few samples."""

    samples: int
    shares: list[SourceShare]
    wider: list[SourceShare] = field(default_factory=list)
    """Functions, then lines of the training loop, that surely have the largest part."""

    @property
    def main(self) -> SourceShare | None:
        """The line with the largest part; else the function of several lines, or the line of the training loop, that
        has it; None if that is not sure. A function is told as well where it does more of what its line does, or where
        it is known what it does and not what its line does."""
        line, wider = next((share for share in self.shares if share.sure), None), next(iter(self.wider), None)
        if line is None or wider is None:
            return line or wider
        alike = sum(share.share for share in self.shares if share.place.what == line.place.what)
        more = MORE_THAN_A_LINE * line.share <= wider.share <= alike + 0.01  # lines of other kinds are no part of it
        if more and wider.place.what == line.place.what != "":
            return wider
        around = not line.place.what and wider.place.what and MORE_THAN_A_LINE * line.share <= wider.share
        return wider if around and function_of(wider.place.text) == function_of(line.place.text) else line

    @property
    def unknown(self) -> SourceShare | None:
        """The line with the largest part, where nothing is known of what is done there and around it, but that it may
        call a module."""
        known = any(each.place.what not in ("", MODULE) for each in (*self.shares, *self.wider) if each.sure)
        return None if known else next((each for each in self.shares if each.sure), None)


@dataclass(frozen=True)
class StartSources(Sources):
    """The places before the first step."""

    main_s: float = 0.0
    """How long the rank that is longest at the main line is there."""
    widest: str = ""
    """The main line, or the function or the line of the script around it that has more."""
    turns_s: float = 0.0
    """How long each rank is there, where each waits for others much of that time, as they take turns, and at most
    the longest wait; else 0."""


def other_sources(ranks: Sequence[RankAnalysis]) -> Sources:
    """The places of `other` of these ranks together."""
    return sources_of(ranks, lambda place: not place.is_of_data and not place.is_of_start)


def start_sources(ranks: Sequence[RankAnalysis]) -> StartSources:
    """The lines that worked before the first step of these ranks."""
    found = sources_of(ranks, lambda place: place.what in (START, START_ITEMS), Flag.WARMUP)
    line = found.main
    if line is None:
        return StartSources(found.samples, found.shares, found.wider)
    seen = [[each for each in rank.data.samples if each[1].is_of_start] for rank in ranks]
    widest = max((line, *found.wider), key=lambda each: each.share).place.text
    waits = [START_LOOK_S * sum(n for _, place, n in each if place.what == START_WAITS) for each in seen]
    works, at_line = (
        [
            START_LOOK_S * sum(n for _, place, n in each if place.what != START_WAITS and _is_at(place, text))
            for each in seen
        ]
        for text in (widest, line.place.text)
    )
    taken = all(wait_s >= TURN_SHARE * work_s > 0 for wait_s, work_s in zip(waits, works, strict=True))
    turns_s = min(*works, max(waits)) if taken else 0.0
    return StartSources(found.samples, found.shares, found.wider, max(at_line), widest, turns_s)


def _is_at(place: SourceLocation, text: str) -> bool:
    """Whether a place is that of this text, of its function where it is of several lines, or led there by it."""
    return text in (place.text, place.caller) or (
        number_of(text) is None and function_of(place.text) == function_of(text)
    )


def between_sources(ranks: Sequence[RankAnalysis], begins: Sequence[int] = ()) -> Sources:
    """The lines that worked in steps with an evaluation, a checkpoint or the begin of an epoch, but for these; and in
    those with the numbers `begins`."""
    flags = Flag.EVALUATION | Flag.CHECKPOINT | Flag.EPOCH_START
    return _sources(
        ranks,
        _wanted(lambda place: not (place.is_of_data or place.is_of_start or place.what in TIMED)),
        lambda rank: (rank.flags & int(flags) != 0) | np.isin(rank.times.step, begins),
    )


def evaluation_sources(ranks: Sequence[RankAnalysis]) -> Sources:
    """The places that worked in steps with an evaluation, forwards and the making of batches among them."""
    return sources_of(ranks, lambda place: not place.is_of_start and place.what != DATA_CALLER, Flag.EVALUATION)


def sources_of(
    ranks: Sequence[RankAnalysis], wanted: Callable[[SourceLocation], bool], flag: Flag | None = None
) -> Sources:
    """Such places in `other` and in waits for data; `flag`: of the steps with it, in place of the steady ones."""
    return _sources(ranks, _wanted(wanted), None if flag is None else lambda rank: rank.flags & int(flag) != 0)


def _wanted(wanted: Callable[[SourceLocation], bool]) -> Callable[[RankData], list[_Sampled]]:
    return lambda rank: [each for each in rank.samples if wanted(each[1])]


TIMED = (EVALUATION, FORWARD, ROLLOUT, CHECKPOINT)
"""Words of what is timed by itself."""
PASSES = (
    LOOP, EACH, OWN_LOOP, LOGGING, PLOT, PARAMETRIZED, DECOMPOSES, DERIVES, DERIVES_EACH, ONE_HOT, CONSTANT, MODULE, "",
)  # fmt: skip
"""Words of the places in forwards and losses, hooks of packages among them; the next ones of those in loops of
optimizers, and in all that follows a backward."""
UPDATES, AFTER_BACKWARD = (UPDATE, PRECONDITIONS), (BETWEEN, STEPPING, UPDATE, PRECONDITIONS)


def compute_sources(ranks: Sequence[RankAnalysis], words: tuple[str, ...] = PASSES) -> Sources:
    """The loops and lines of computing with these words."""
    return _sources(ranks, lambda rank: [each for each in rank.compute_samples if each[1].what in words])


def _sources(
    ranks: Sequence[RankAnalysis],
    samples_of: Callable[[RankData], list[_Sampled]],
    steps: Callable[[RankAnalysis], np.ndarray[tuple[int], np.dtype[np.bool_]]] | None = None,
) -> Sources:
    """The places of the samples of these steps of a rank, else of the steady ones. The later a sample, the more time it
    stands for (`sparseness`)."""
    time: defaultdict[str, float] = defaultdict(float)
    kinds: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    functions, callers = _Votes(), _Votes()
    samples, of_squares = 0, 0.0
    for rank in ranks:
        usual = rank.times.steady if steps is None else steps(rank)
        left_out = set(rank.times.step[~usual].tolist())
        kept = [each for each in samples_of(rank.data) if each[0] not in left_out]
        for (_, place, number), weight in zip(kept, _weights(rank.data, [step for step, _, _ in kept]), strict=True):
            time[place.text] += number * weight
            kinds[place.text][place.what] += number * weight
            functions.add(function_of(place.text), place, number * weight)
            callers.add(place.caller or place.text, place, number * weight)
            samples += number
            of_squares += number * weight**2
    if samples < LINE_SAMPLES:
        return Sources(samples, [])
    total = sum(time.values())
    alike = total**2 / of_squares  # so many samples that stand for equal times would be as sure

    def is_sure(seconds: float) -> bool:
        return lowest_share(seconds / total * alike, alike) > LINE_SHARE

    shares = [
        SourceShare(
            SourceLocation(text, _usual(kinds[text])),
            n / total,
            is_sure(n),
            {what: part / total for what, part in kinds[text].items()},
        )
        for text, n in sorted(time.items(), key=lambda each: -each[1])
    ]
    wider = [
        SourceShare(SourceLocation(text, what), n / total, True)
        for votes in (functions, callers)
        for text, what, n in votes.ordered()
        if is_sure(n)
    ]
    return Sources(samples, shares, wider)


class _Votes:
    """The time of places that are told by something wider: their function, or the line that led there."""

    def __init__(self) -> None:
        self._time: defaultdict[str, float] = defaultdict(float)
        self._kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._lines: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, wider: str, place: SourceLocation, time: float) -> None:
        self._time[wider] += time
        self._kinds[wider][place.what] += round(1000 * time)
        self._lines[wider].add(place.text)

    def ordered(self) -> Iterator[tuple[str, str, float]]:
        """Text, kind of work and time of each, the longest first. A kind is told if a third of the time has it."""
        for text, time in sorted(self._time.items(), key=lambda each: -each[1]):
            told = ((what, n) for what, n in self._kinds[text].most_common() if what)
            what = next((what for what, n in told if n >= LINE_SHARE * 1000 * time), "")
            yield _lines(text, self._lines[text]), what, time


def function_of(text: str) -> str:
    """The file and the function of a place, `train.py main`, also where it is in a comprehension in that function, or
    several lines of it; a place of another form as it is."""
    place, space, name = text.rpartition(" ")
    file, _, line = place.rpartition(":")
    name = _INSIDE.sub("", name)
    return f"{file} {name}" if space and file and _NUMBERS.fullmatch(line) else text


def number_of(text: str) -> int | None:
    """The number of the line of a place; None if it is of several lines, or of another form."""
    number = text.rpartition(" ")[0].rpartition(":")[2]
    return int(number) if number.isdigit() and number.isascii() else None


def _lines(wider: str, places: set[str]) -> str:
    """The lines of one function as one place, `train.py:60-64 main`; anything else as it is."""
    if {function_of(place) for place in places} != {wider} or wider in places:
        return wider
    file, _, name = wider.rpartition(" ")
    lines = sorted({int(place[len(file) + 1 :].partition(" ")[0]) for place in places})
    return f"{file}:{lines[0]}-{lines[-1]} {name}" if len(lines) > 1 else f"{file}:{lines[0]} {name}"


def _weights(rank: RankData, steps: list[int]) -> list[float]:
    """How much each sample of these steps counts."""
    table = rank.steps
    if not len(table):
        return [1.0] * len(steps)
    number, start_ns = table["step"], table["start_ns"]
    first_ns = start_ns[0] if number[0] == 0 else 0  # a run that is followed has only its latest steps here
    since_s = (np.interp(steps, number, start_ns) - first_ns) / 1e9
    return [sparseness(each) for each in since_s.tolist()]


def _usual(kinds: Mapping[str, float]) -> str:
    """What a place mostly does. A loop that was once seen to call a module, or to keep a state, does so. A line that
    calls a module may do it for something that is known and has a third of its time."""
    what = max(kinds, key=lambda what: kinds[what])
    known = {what: part for what, part in kinds.items() if what not in ("", MODULE)}
    if what == MODULE and known and max(known.values()) >= LINE_SHARE * sum(kinds.values()):
        what = max(known, key=lambda what: known[what])
    return next(loop for loop in _LOOPS if loop in kinds) if what in _LOOPS else what
