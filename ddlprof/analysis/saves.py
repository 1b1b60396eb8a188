"""What one rank does while the others wait for it: an evaluation, or an upload after it has written a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.thresholds import JOB_EVENTS, LINE_SHARE
from ddlprof.model import source_locations
from ddlprof.model.records import CHECKPOINT, EVALUATION, MISSING, Flag
from ddlprof.model.source_locations import SourceLocation

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis
    from ddlprof.store import IntArray

_OTHER_WORK = frozenset(
    (source_locations.EVALUATION, source_locations.FORWARD, source_locations.ROLLOUT, source_locations.LOGGING)
)
"""Kinds of lines that have nothing to do with a checkpoint, though the script comes to them in the same steps."""

_MUCH_LONGER = 2
"""Ranks that each write a part of a checkpoint take about as long."""


@dataclass(frozen=True)
class AfterSaves:
    """The work of one rank in the steps in which a checkpoint is written, beside the writing."""

    rank: int
    number: int
    seconds: float
    """What each such step takes longer for it."""
    written_s: float
    """What the functions that write take in each."""
    line: SourceLocation | None = None
    """Where most of it is spent, by stack samples."""
    writer: int | None = None
    """Another rank that writes much longer, so that this one works for its checkpoint; None: it writes itself."""


def lone_evaluator(ranks: Sequence[RankAnalysis]) -> int | None:
    """The only rank that evaluates; None if several do or none, if there is one rank, or if it was not timed."""
    if len(ranks) < 2 or not all(rank.data.header.spans for rank in ranks):
        return None
    found = [rank.data.rank for rank in ranks if any(span.what == EVALUATION for span in rank.data.spans)]
    return found[0] if len(found) == 1 else None


def after_saves(ranks: Sequence[RankAnalysis]) -> AfterSaves | None:
    """The work after checkpoints; None where there is none, where others do not wait for it, or nothing is known."""
    numbers = _saving(ranks)
    if len(numbers) < JOB_EVENTS:
        return None
    more_ns = {rank.data.rank: _more_ns(rank, "other", numbers) for rank in ranks}
    if any(each is None for each in more_ns.values()):
        return None
    worker = max(ranks, key=lambda rank: (more_ns[rank.data.rank] or 0.0, -rank.data.rank))
    writing = {rank.data.rank: _writing_ns(rank) for rank in ranks}
    writer, written_ns = max(writing, key=lambda number: writing[number]), writing[worker.data.rank]
    seconds = ((more_ns[worker.data.rank] or 0.0) - written_ns) / 1e9
    waits = [_more_ns(rank, "comm", numbers) for rank in ranks if rank is not worker]
    known = [each for each in waits if each is not None]
    if waits:
        seconds = min(seconds, float(np.median(known)) / 1e9) if len(known) == len(waits) else 0.0
    line = _line(worker, numbers)
    if seconds <= 0 or (line is not None and line.what in _OTHER_WORK):
        return None
    other = writer if writing[writer] > _MUCH_LONGER * written_ns else None
    return AfterSaves(worker.data.rank, len(numbers), seconds, written_ns / 1e9, line, other)


def _writing_ns(rank: RankAnalysis) -> float:
    """The mean time of what a rank writes in one go."""
    spans = [span.duration_ns for span in rank.data.spans if span.what == CHECKPOINT]
    return float(np.mean(spans)) if spans else 0.0


def _saving(ranks: Sequence[RankAnalysis]) -> IntArray:
    """The numbers of the steps in which some rank writes a checkpoint and nothing else is unusual, on all ranks."""
    common: IntArray = ranks[0].times.step if ranks else np.zeros(0, dtype=np.int64)
    saving: list[IntArray] = []
    for rank in ranks:
        unusual = rank.flags & int(Flag.WARMUP | Flag.EVALUATION | Flag.EPOCH_START | Flag.COMPILE | Flag.TRACED) != 0
        usual = rank.times.step[~unusual]
        common = common if np.array_equal(common, usual) else np.intersect1d(common, usual)
        saving.append(rank.times.step[rank.flags & int(Flag.CHECKPOINT) != 0])
    return np.intersect1d(common, np.concatenate([*saving, np.zeros(0, dtype=np.int64)]))


def _more_ns(rank: RankAnalysis, name: str, numbers: IntArray) -> float | None:
    """How much more of a class these steps have than the steady ones; None: not known."""
    usual = rank.summary.mean_ns(name)
    times = rank.times.times[name][np.isin(rank.times.step, numbers)]
    if usual is None or not len(times) or (times == MISSING).any():
        return None
    return float(times.mean()) - usual


def _line(rank: RankAnalysis, numbers: IntArray) -> SourceLocation | None:
    """The place of most stack samples in these steps."""
    chosen, found = set(numbers.tolist()), Counter[SourceLocation]()
    for step, place, count in rank.data.samples:
        if step in chosen:
            found[place] += count
    if not found:
        return None
    place, count = found.most_common(1)[0]
    return place if count >= LINE_SHARE * found.total() else None
