"""Divides the wall time of the whole job into ordinary steps and everything else.

The job's timeline is that of its lowest rank, from the start of the first process to the end of the last. An
evaluation, checkpoint or compilation of any rank counts for the job, as the others wait for it at their next
collective. All sums are of whole nanoseconds, so the parts add up exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.saves import after_saves
from ddlprof.model.records import CHECKPOINT, COMPILATION, EVALUATION, MISSING, PROFILING, SPANS, Flag

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt, RankAnalysis
    from ddlprof.store import IntArray, RankData

JOB_PARTS = (
    "start_up",
    "steps",
    "warm_up",
    "epoch_start",
    "evaluation",
    "checkpoint",
    "compilation",
    "profiling",
    "idle",
    "end",
)
"""The parts in the order shown; they partition the wall time of the job.

`start_up` is the time before the first step, `end` the time after the last. `evaluation`, `checkpoint`, `compilation`
and `profiling` (ours) are taken out of wherever they happened, before the first step and after the last, too. Of what
is left of the steps, `epoch_start` is the wait for the first batches of epochs beyond an ordinary wait, `warm_up` is
what the first steps took more than the mean of the steady ones, and `idle` what steps with an evaluation, a checkpoint
or the start of an epoch took more, and the first step of each later phase outside of computing: code of the script's
own. What one rank goes on doing after a checkpoint, such as an upload for which the others wait, belongs to
`checkpoint`. `steps` is the rest.
"""


@dataclass(frozen=True)
class Skipped:
    """Batches that the loop takes before its first step, beyond those that this or a later step trains on."""

    batches: int
    seconds: float
    """The waits for them."""


@dataclass(frozen=True)
class JobTime:
    """The wall time of one attempt of the job, from the start of its first process to its end."""

    wall_s: float
    parts_s: dict[str, float | None]
    """The seconds of each of `JOB_PARTS`, which add up to `wall_s`; None where one was not measured."""
    evaluations: int | None = None
    """The number of evaluations, and in the next two fields of checkpoints and epochs; None: not known."""
    checkpoints: int | None = None
    epochs: int | None = None
    """The number of epochs that began."""
    trains_on: bool = False
    """Whether a step begins after an evaluation."""
    skipped: Skipped | None = None
    """What the lowest rank takes before it trains; None: nothing, or not known."""
    several_first: bool = False
    """Whether a first step of an epoch has twice the usual samples for each backward, as one that fills a buffer."""
    later_phases: int = 0
    """The number of phases of the training after the first one."""
    before_phases_s: float = 0.0
    """The part of `idle` in the first steps of these."""
    attempt: int = 0
    steps: int = 0
    """The number of steps of one rank."""
    until: str = "end"
    """What the wall time ends with. `end`: that of the job. `entry`: the last entry of a job that was killed or still
    runs. `stopped`: the end of measuring (`--stop-after`), after which the job went on."""
    timed: bool = True
    """False for runs in which evaluations, checkpoints and compilations were not timed as such (imported
    ones): they are then what steps with such a flag took longer, and those after the last step are in `end`."""

    def share(self, part: str) -> float | None:
        """The share of a part of the wall time."""
        seconds = self.parts_s[part]
        return seconds / self.wall_s if seconds is not None and self.wall_s > 0 else None


LONGEST_NS = 2**56
"""Two years in ns: no job took longer, and sums of such times fit into 64 bits."""
_FIRST = (PROFILING, COMPILATION, CHECKPOINT, EVALUATION)
"""Where spans overlap, the first of these gets the time: an evaluation may compile, or write a checkpoint."""
_TAKES_LONGER = ((Flag.COMPILE, COMPILATION), (Flag.WARMUP, "warm_up"), (Flag.TRACED, PROFILING))
"""The part that the extra time of an unusual step counts for, by its first flag; without any, `idle`."""
_ONE_SIZE = 0.9
"""The share of steps with the same number of samples for each backward from which batches are counted by it; the last
batch of an epoch may be smaller."""
_BEFORE_PHASES = "before_phases"
"""What of `idle` is before phases."""
_NOT_OF_SCRIPT = int(Flag.COMPILE | Flag.TRACED)
_NOT_TIMED = ((Flag.EVALUATION, EVALUATION), (Flag.CHECKPOINT, CHECKPOINT))
"""The flags that come first if spans were not recorded."""


def job_time(attempt: Attempt) -> JobTime | None:
    """How the wall time of an attempt divides; None if no step was measured, or the clocks cannot be right."""
    ranks = sorted((rank for rank in attempt.ranks if len(rank.data.steps)), key=lambda rank: rank.data.rank)
    if not ranks:
        return None
    lowest, data = ranks[0], [rank.data for rank in attempt.ranks]
    until = _until(data)
    timed = all(each.header.spans for each in data)
    origins = [rank.shown_origin_unix_ns for rank in attempt.ranks]
    begin = min(origin - (each.header.age_ns or 0) for origin, each in zip(origins, data, strict=True))
    shift = lowest.shown_origin_unix_ns - begin
    if until == "stopped":
        wall = shift + _last_step_ns(lowest.data)
    else:
        wall = max(origin + _end_ns(each) for origin, each in zip(origins, data, strict=True)) - begin
    if not (0 < wall < LONGEST_NS and abs(shift) < LONGEST_NS):
        return None
    spans: dict[str, list[tuple[int, int]]] = {what: [] for what in SPANS}
    for origin, each in zip(origins, data, strict=True):
        for span in each.spans:
            first = min(max(origin - begin + span.start_ns, 0), wall)
            spans[span.what].append((first, min(max(first + span.duration_ns, first), wall)))
    nanoseconds = _partition(_Steps.of(lowest, attempt, shift), spans, wall, timed)
    after = after_saves(attempt.ranks) if timed else None
    if after is not None:  # the script's own part of saving: copies, uploads
        saves = min(round(1e9 * after.number * after.seconds), nanoseconds["idle"])
        nanoseconds["checkpoint"], nanoseconds["idle"] = nanoseconds["checkpoint"] + saves, nanoseconds["idle"] - saves
    parts: dict[str, float | None] = {part: nanoseconds[part] / 1e9 for part in JOB_PARTS}
    if not timed:
        parts |= {what: parts[what] or None for what in SPANS}
    if until == "stopped":
        parts["end"] = None
    steps, sizes = lowest.data.steps, _samples_of_pass(lowest)
    return JobTime(
        wall_s=wall / 1e9,
        parts_s=parts,
        evaluations=_count(attempt.ranks, EVALUATION, Flag.EVALUATION, timed),
        trains_on=any(_trains_after_evaluating(each) for each in data),
        checkpoints=_count(attempt.ranks, CHECKPOINT, Flag.CHECKPOINT, timed),
        epochs=_flagged(lowest, Flag.EPOCH_START) if (steps["data_ns"] != MISSING).any() else None,
        skipped=_skipped(lowest, sizes),
        several_first=_several_first(lowest, sizes),
        later_phases=len(attempt.later_phases),
        before_phases_s=nanoseconds[_BEFORE_PHASES] / 1e9,
        attempt=attempt.attempt,
        steps=lowest.data.step_count,
        until=until,
        timed=timed,
    )


def _skipped(rank: RankAnalysis, sizes: NDArray[np.float64]) -> Skipped | None:
    """The batches that the first step has beyond its backwards, if nearly all steps have batches of one size. What
    fills a buffer is trained on in later steps, which take no batch. `sizes`: see `_samples_of_pass`."""
    steps, known = rank.data.steps, sizes > 0
    usual = sizes[known & rank.times.steady]
    if not len(usual) or not known[0] or steps["step"][0] != 0:
        return None
    size, passes = float(np.median(usual)), np.maximum(steps["microbatches"], 1)
    if np.count_nonzero(usual == size) < _ONE_SIZE * len(usual):
        return None
    batches = steps["samples"][0] / size
    more = round(batches - passes[0] - passes[steps["samples"] <= 0].sum())
    return Skipped(more, float(steps["data_ns"][0] * more / batches) / 1e9) if more > 0 else None


def _several_first(rank: RankAnalysis, sizes: NDArray[np.float64]) -> bool:
    usual = sizes[(sizes > 0) & rank.times.steady]
    first = sizes[rank.flags & int(Flag.EPOCH_START) != 0]
    return bool(len(usual)) and float(first.max(initial=0)) >= 2 * float(np.median(usual))


def _samples_of_pass(rank: RankAnalysis) -> NDArray[np.float64]:
    """The samples of each step for each of its backwards; 0 where they are not known, or some may be evaluated on."""
    steps = rank.data.steps
    known = (steps["samples"] > 0) & (steps["data_ns"] != MISSING) & (rank.flags & int(Flag.EVALUATION) == 0)
    return np.where(known, steps["samples"] / np.maximum(steps["microbatches"], 1), 0.0)


def _until(ranks: Sequence[RankData]) -> str:
    if any(rank.status == "stopped" for rank in ranks):
        return "stopped"
    return "end" if all(rank.complete for rank in ranks) else "entry"


def _last_step_ns(rank: RankData) -> int:
    return int((rank.steps["start_ns"] + rank.steps["step_ns"]).max(initial=0))


def _end_ns(rank: RankData) -> int:
    """The end of a rank, or of what is known of it, in ns since its origin."""
    spans = (span.start_ns + span.duration_ns for span in rank.spans)
    return max(_last_step_ns(rank), rank.last_seen_unix_ns - rank.header.origin_unix_ns, *spans)


def _flagged(rank: RankAnalysis, flag: Flag) -> int:
    return int(np.count_nonzero(rank.flags & int(flag)))


def _count(ranks: Sequence[RankAnalysis], what: str, flag: Flag, timed: bool) -> int | None:
    """How often it happened, on the rank with most occurrences."""
    if timed:
        return max(sum(span.what == what for span in rank.data.spans) for rank in ranks)
    return max(_flagged(rank, flag) for rank in ranks) or None


def _trains_after_evaluating(rank: RankData) -> bool:
    last_ns = int(rank.steps["start_ns"].max(initial=0))
    return any(span.what == EVALUATION and span.start_ns < last_ns for span in rank.spans)


@dataclass(frozen=True)
class _Steps:
    """The steps of one rank in ns since the job began. Steps after the last row are one entry at the end."""

    begin: IntArray
    end: IntArray
    flags: IntArray
    data: IntArray
    summed: int
    """The time of steps between the rows, which were kept only as sums."""
    mean: int | IntArray | None
    """The mean steady step, with several phases for each step that of its phase; None if there was none."""
    mean_data: int
    unusual_flags: int
    before_phase: IntArray
    """What the first step of a phase after the first one has in `other` beyond the mean; 0 in all others."""

    @classmethod
    def of(cls, rank: RankAnalysis, attempt: Attempt, shift: int) -> _Steps:
        steps, aggregates = rank.data.steps, rank.data.aggregates
        begin, flags, data = steps["start_ns"] + shift, rank.flags, steps["data_ns"]
        end = begin + steps["step_ns"]
        last = int(steps["step"][-1])
        behind = sum(each.step_ns for each in aggregates if each.first_step > last)
        if behind:
            begin, flags, data = np.append(begin, end[-1]), np.append(flags, 0), np.append(data, 0)
            end = np.append(end, min(int(end[-1]) + behind, LONGEST_NS))
        summary = rank.summary if rank.summary.steady_steps else attempt.summary
        mean = summary.mean_ns("step")
        numbers = steps["step"] if not behind else np.append(steps["step"], last)
        other = np.maximum(steps["other_ns"] - round(summary.mean_ns("other") or 0), 0)
        other = np.where(np.isin(steps["step"], attempt.later_phases), other, 0)
        by_phase = attempt.phases.means_ns(numbers) if attempt.phases is not None else None
        of_all = None if mean is None else round(mean)
        return cls(
            begin=begin,
            end=end,
            flags=flags,
            data=data,
            summed=sum(each.step_ns for each in aggregates) - behind,
            mean=of_all if by_phase is None else by_phase,
            mean_data=round(summary.mean_ns("data") or 0),
            unusual_flags=attempt.window.unusual_flags,
            before_phase=np.append(other, 0) if behind else other,
        )


def _partition(steps: _Steps, spans: dict[str, list[tuple[int, int]]], wall: int, timed: bool) -> dict[str, int]:
    """The nanoseconds of each part, and of `_BEFORE_PHASES`."""
    parts = dict.fromkeys((*JOB_PARTS, _BEFORE_PHASES), 0)
    moments = np.stack([steps.begin, steps.end], axis=1).ravel()
    # Steps follow each other without a gap or overlap, unless the file is damaged.
    edges = np.maximum.accumulate(np.concatenate([[0], moments.clip(0, wall), [wall]]))
    covered = np.zeros(len(edges), dtype=np.int64)
    taken: list[tuple[int, int]] = []
    for what in _FIRST:
        taken += spans[what]
        before, covered = covered, _covered(taken, edges)
        parts[what] = int(covered[-1] - before[-1])
    rest = np.diff(edges) - np.diff(covered)
    parts["start_up"], parts["end"] = int(rest[0]), int(rest[-1])
    between = int(rest[2:-1:2].sum())
    parts["steps"] = min(between, steps.summed)
    parts["idle"] = between - parts["steps"]
    for part, nanoseconds in _of_steps(steps, rest[1:-1:2], timed):
        parts[part] += nanoseconds
    return parts


def _of_steps(steps: _Steps, took: IntArray, timed: bool) -> Iterable[tuple[str, int]]:
    """The time of steps outside of spans, by part, in ns."""
    flags = steps.flags
    unusual = flags & (steps.unusual_flags | int(Flag.WARMUP)) != 0
    usual = np.where(unusual, np.minimum(took, took if steps.mean is None else steps.mean), took)
    yield "steps", int(usual.sum())
    longer = took - usual
    first_batches = np.where(flags & int(Flag.EPOCH_START), np.clip(steps.data - steps.mean_data, 0, longer), 0)
    yield "epoch_start", int(first_batches.sum())
    longer -= first_batches
    before_phases = np.where(flags & _NOT_OF_SCRIPT, 0, np.clip(steps.before_phase, 0, longer))
    yield "idle", int(before_phases.sum())
    yield _BEFORE_PHASES, int(before_phases.sum())
    longer -= before_phases
    for flag, part in _TAKES_LONGER if timed else (*_NOT_TIMED, *_TAKES_LONGER):
        having = np.where(flags & int(flag), longer, 0)
        yield part, int(having.sum())
        longer -= having
    yield "idle", int(longer.sum())


def _covered(spans: Iterable[tuple[int, int]], moments: IntArray) -> IntArray:
    """The covered time before each moment, in ns. Overlapping spans count once."""
    begins, ends = _union(spans)
    if not len(begins):
        return np.zeros(len(moments), dtype=np.int64)
    index = np.searchsorted(begins, moments, side="right")
    before = np.concatenate([[0], np.cumsum(ends - begins)])[index]
    still_to_come = np.where(index > 0, np.maximum(ends[index - 1] - moments, 0), 0)
    return np.asarray(before - still_to_come)


def _union(spans: Iterable[tuple[int, int]]) -> tuple[IntArray, IntArray]:
    """Begins and ends of the same time without overlaps, ascending."""
    table: NDArray[np.int64] = np.array(sorted(spans), dtype=np.int64).reshape(-1, 2)
    if not len(table):
        return table[:, 0], table[:, 1]
    reach = np.maximum.accumulate(table[:, 1])
    first = np.concatenate([[True], table[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return table[first, 0], reach[last]
