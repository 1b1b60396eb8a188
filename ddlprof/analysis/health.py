"""Which counters of a sick machine moved in the steps in which its rank was late, and not otherwise or elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.thresholds import MOVED_CONTRAST, MOVED_SHARE, MOVED_STEPS
from ddlprof.model.classes import OWN
from ddlprof.model.health import COUNTERS, EVERY_S, HealthCounter, HealthReading
from ddlprof.model.records import MISSING

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt, RankAnalysis
    from ddlprof.store import RankData

_LONGEST_S = 1.1 * EVERY_S
"""What is between two readings at most. A counter that has not changed for longer has moved at the end of it."""


@dataclass(frozen=True)
class Moved:
    """A counter of the late rank's machine or device that moved while it was late."""

    counter: HealthCounter
    where: str
    per_s: float
    """The rate while it moved; of a level, its mean."""
    late_share: float
    """The share of the rank's lateness that is in this time."""
    elsewhere: bool
    """Whether the others tell the same counter, and theirs did not move so."""
    steps: int
    """The late steps in this time."""


@dataclass(frozen=True)
class _Spans:
    """When a counter moved, in ns since the origin of its rank."""

    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    amount: float

    def has(self, time_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these moments are in one of the spans; they are in ascending order and do not overlap."""
        after = np.searchsorted(self.begin, time_ns, side="left")
        before = np.minimum(np.maximum(after - 1, 0), max(len(self.end) - 1, 0))
        if not len(self.end):
            return np.zeros(len(time_ns), dtype=bool)
        return np.asarray((after > 0) & (time_ns <= self.end[before]))

    @property
    def seconds(self) -> float:
        return float((self.end - self.begin).sum()) / 1e9


def moved_of(attempt: Attempt) -> list[Moved]:
    """The counters that may explain why the late rank of an attempt is late; none where there is no such rank."""
    return [] if attempt.late_rank is None else moved_counters(attempt.ranks, attempt.late_rank.rank)


def moved_counters(ranks: Sequence[RankAnalysis], late: int) -> list[Moved]:
    """The counters that may explain why the rank of this number is late, the ones that explain most first."""
    own = next((rank for rank in ranks if rank.data.rank == late), None)
    if own is None:
        return []
    steps, more_ns = _lateness(own, [rank for rank in ranks if rank is not own])
    late_ns = np.maximum(more_ns, 0.0)
    if not len(steps) or late_ns.sum() <= 0:
        return []
    ends = own.data.steps["start_ns"][steps] + own.data.steps["step_ns"][steps]
    crossed = "inter" in own.traffic.scopes  # no cable explains a wait inside one machine
    moves = [(key, spans) for key, spans in _moves(own.data) if crossed or not COUNTERS[key[0]].of_network]
    found = [_judged(key, spans, ends, more_ns, own, ranks) for key, spans in moves]
    return sorted((each for each in found if each is not None), key=lambda each: (-each.late_share, each.counter.name))


def _judged(
    key: tuple[str, str],
    spans: _Spans,
    ends: NDArray[np.int64],
    more_ns: NDArray[np.float64],
    own: RankAnalysis,
    ranks: Sequence[RankAnalysis],
) -> Moved | None:
    """The counter as an explanation of the lateness; None where it explains too little of it, or moves anyway."""
    inside, late_ns = spans.has(ends), np.maximum(more_ns, 0.0)
    share = float(late_ns[inside].sum() / late_ns.sum())
    steps = int(np.count_nonzero(inside & (more_ns > more_ns.mean() / 2)))
    if share < MOVED_SHARE or steps < MOVED_STEPS:
        return None
    counter, outside = COUNTERS[key[0]], more_ns[~inside]
    in_time = len(outside) >= MOVED_STEPS and more_ns[inside].mean() >= MOVED_CONTRAST * max(outside.mean(), 0.0)
    covered = float(np.mean(inside))
    others = _elsewhere(counter, own, ranks)
    elsewhere = bool(others) and max(others) * MOVED_CONTRAST <= covered
    if not in_time and not elsewhere:
        return None
    rate = spans.amount / spans.seconds if spans.seconds else 0.0
    return Moved(counter, key[1], rate, share, elsewhere, steps)


def _lateness(own: RankAnalysis, others: Sequence[RankAnalysis]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The steady steps that all ranks have, as places in the late rank's, and by how much its own time exceeds the
    median of the others in each, in ns."""
    common = own.times.step[own.times.steady]
    for rank in others:
        steady = rank.times.step[rank.times.steady]
        common = common if np.array_equal(common, steady) else np.intersect1d(common, steady)
    if not others or not len(common):
        return np.zeros(0, dtype=np.intp), np.zeros(0)
    theirs = np.median([_own_ns(rank)[_places(rank, common)] for rank in others], axis=0)
    places = _places(own, common)
    return places, np.asarray(_own_ns(own)[places] - theirs, dtype=np.float64)


def _places(rank: RankAnalysis, steps: NDArray[np.int64]) -> NDArray[np.intp]:
    """Where these steps are among the rank's, which a damaged file may have in any order."""
    order = np.argsort(rank.times.step, kind="stable")
    return np.asarray(order[np.searchsorted(rank.times.step[order], steps)])


def _own_ns(rank: RankAnalysis) -> NDArray[np.int64]:
    known = [rank.times.times[name] for name in OWN if name in rank.times.times]
    return np.asarray(np.sum([np.where(times == MISSING, 0, times) for times in known], axis=0))


def _elsewhere(counter: HealthCounter, own: RankAnalysis, ranks: Sequence[RankAnalysis]) -> list[float]:
    """The share of their time in which the same counter moved on the other devices, or the other machines."""
    shares: dict[int, float] = {}
    for rank in ranks:
        other = rank.data.rank if counter.of_device else rank.data.node
        same = rank is own or (not counter.of_device and rank.data.node == own.data.node)
        if same or not any(each.counter == counter.name for each in rank.data.health) or not len(rank.data.steps):
            continue
        steady = np.flatnonzero(rank.times.steady)
        ends = rank.data.steps["start_ns"][steady] + rank.data.steps["step_ns"][steady]
        inside = [spans.has(ends) for (name, _), spans in _moves(rank.data) if name == counter.name]
        shares[other] = max(shares.get(other, 0.0), float(np.mean(np.any(inside, axis=0))) if inside else 0.0)
    return list(shares.values())


def _moves(rank: RankData) -> Iterator[tuple[tuple[str, str], _Spans]]:
    """The counters that moved fast enough, each with the spans of time in which they did."""
    by_key: dict[tuple[str, str], list[HealthReading]] = {}
    for reading in rank.health:
        by_key.setdefault((reading.counter, reading.where), []).append(reading)
    end_ns = int(rank.steps["start_ns"][-1] + rank.steps["step_ns"][-1]) if len(rank.steps) else 0
    for key, own in by_key.items():
        counter = COUNTERS[key[0]]
        spans = list(_bad(own, end_ns) if counter.is_level else _grown(own, counter.least_per_s))
        if spans:
            begin, end, amount = map(np.array, zip(*spans, strict=True))
            yield key, _Spans(begin.astype(np.float64), end.astype(np.float64), float(amount.sum()))


def _grown(readings: Sequence[HealthReading], least_per_s: float) -> Iterator[tuple[float, float, float]]:
    """The spans before each reading in which a counter grew at this rate or faster, and by how much."""
    for last, reading in itertools.pairwise(readings):
        begin = max(last.time_ns, reading.time_ns - _LONGEST_S * 1e9)
        more, seconds = reading.value - last.value, (reading.time_ns - begin) / 1e9
        if more > 0 and seconds > 0 and more / seconds >= least_per_s:
            yield begin, reading.time_ns, more


def _bad(readings: Sequence[HealthReading], end_ns: int) -> Iterator[tuple[float, float, float]]:
    """The spans in which a level was not 0, and the level times the seconds."""
    for number, reading in enumerate(readings):
        until = readings[number + 1].time_ns if number + 1 < len(readings) else end_ns
        if reading.value > 0 and until > reading.time_ns:
            yield reading.time_ns, until, reading.value * (until - reading.time_ns) / 1e9
