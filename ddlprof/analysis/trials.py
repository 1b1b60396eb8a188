"""Makes an `AttemptFacts` of each attempt of a run: the parts of its wall time, its checkpoints, and what it began
from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.job_time import JobTime, job_time
from ddlprof.model.checkpoint_files import LOADED, SAVED
from ddlprof.model.hang import standstill_s
from ddlprof.model.records import CHECKPOINT as CHECKPOINT_SPAN
from ddlprof.model.records import GOOD_ENDS, MISSING, Flag
from ddlprof.model.trial import MOST_SAVES, AttemptFacts, ReadFrom, SavedAt

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt, RankAnalysis
    from ddlprof.model.checkpoint_files import CheckpointFile
    from ddlprof.store import RankData

_OF_START_UP = ("start_up", "compilation", "warm_up", "profiling")
_OF_IDLE = ("idle", "epoch_start", "end")
_EXPLAINED = int(Flag.EVALUATION | Flag.CHECKPOINT | Flag.COMPILE | Flag.TRACED | Flag.EPOCH_START | Flag.WARMUP)
"""Flags of steps that are long for a known reason."""


def trials_of(attempts: Sequence[Attempt]) -> list[AttemptFacts]:
    """The attempts of a run that left anything, in their order."""
    return [trial_of(attempt) for attempt in attempts if attempt.ranks]


def trial_of(attempt: Attempt) -> AttemptFacts:
    """One attempt in a few numbers."""
    data = [rank.data for rank in attempt.ranks]
    first = min(attempt.ranks, key=lambda rank: rank.data.rank)
    begin = min(rank.shown_origin_unix_ns - (rank.data.header.age_ns or 0) for rank in attempt.ranks) / 1e9
    time = job_time(attempt)
    status = status_of(data)
    mean = attempt.summary.mean_ns("step")
    step_s = None if mean is None else mean / 1e9
    if time is None:
        end = max(rank.last_seen_unix_ns for rank in data) / 1e9
        parts, wall_s = {"start_up": max(end - begin, 0.0)}, max(end - begin, 0.0)
    else:
        step_s, hung_s = _hangs(first, step_s)
        parts, wall_s = _parts(time, hung_s, step_s, status), time.wall_s
    return AttemptFacts(
        begin_unix_s=begin,
        end_unix_s=begin + wall_s,
        ranks=data[0].header.world_size,
        machines=len({rank.node for rank in data}),
        steps=max(rank.step_count for rank in data),
        step_s=step_s,
        parts_s=parts,
        status=status,
        checkpoints=(time.checkpoints or 0) if time else 0,
        samples_per_step=_samples(attempt.ranks),
        device=data[0].header.device,
        saves=_saves(data),
        reads=reads_of(_files(data)),
    )


def status_of(ranks: Sequence[RankData]) -> str:
    """How an attempt ended: as the first rank that gave a reason for a bad end, else as any."""
    statuses = [rank.status for rank in ranks]
    bad = [status for status in statuses if status not in GOOD_ENDS]
    # Ranks that were killed because another one failed give no reason: the end of the one that failed does.
    return next((status for status in bad if status != "torn"), bad[0] if bad else statuses[0])


def _parts(time: JobTime, hung_s: float, step_s: float | None, status: str) -> dict[str, float]:
    known = {name: seconds or 0.0 for name, seconds in time.parts_s.items()}
    waited_s = known["end"] if status not in GOOD_ENDS else 0.0
    after_s = waited_s if step_s is not None and waited_s > standstill_s(step_s) else 0.0
    return {
        "steps": max(known["steps"] - hung_s, 0.0),
        "checkpoint": known["checkpoint"],
        "evaluation": known["evaluation"],
        "start_up": sum(known[name] for name in _OF_START_UP),
        "hang": hung_s + after_s,
        "idle": max(sum(known[name] for name in _OF_IDLE) - after_s, 0.0),
    }


def _hangs(rank: RankAnalysis, mean_s: float | None) -> tuple[float | None, float]:
    """The mean steady step without steps that hung, and how much longer than it those took, in seconds."""
    if mean_s is None:
        return None, 0.0
    took = rank.data.steps["step_ns"] / 1e9
    hung = (took > standstill_s(float(np.median(took)))) & (rank.flags & _EXPLAINED == 0)
    if not hung.any():
        return mean_s, 0.0
    steady = rank.times.steady & ~hung
    usual_s = float(took[steady].mean()) if steady.any() else float(np.median(took))
    return usual_s, float((took[hung] - usual_s).sum())


def _samples(ranks: Sequence[RankAnalysis]) -> int | None:
    """The samples of a steady step over all ranks; None where a rank does not tell."""
    total = 0.0
    for rank in ranks:
        samples = rank.data.steps["samples"][rank.times.steady]
        if not len(samples) or (samples == MISSING).any():
            return None
        total += float(samples.mean())
    return round(total)


def saves_of(files: Iterable[CheckpointFile]) -> tuple[SavedAt, ...]:
    """The last checkpoints that were written, by the steps before them."""
    return _latest({SavedAt(file.step, file.place, file.file) for file in files if file.what == SAVED})


def reads_of(files: Iterable[CheckpointFile]) -> tuple[ReadFrom, ...]:
    """What was read before the first step, each file once, in this order."""
    return tuple(dict.fromkeys(ReadFrom(file.place, file.file, file.told) for file in files if file.what == LOADED))


def _latest(saves: Iterable[SavedAt]) -> tuple[SavedAt, ...]:
    return tuple(sorted(saves, key=lambda save: (save.step, save.place, save.file))[-MOST_SAVES:])


def _files(ranks: Sequence[RankData]) -> list[CheckpointFile]:
    return [file for rank in ranks for file in rank.checkpoint_files]


def _saves(ranks: Sequence[RankData]) -> tuple[SavedAt, ...]:
    """The last checkpoints. Runs of older versions tell of them only when they were."""
    return saves_of(_files(ranks)) or _latest({SavedAt(step) for rank in ranks for step in _steps_before_saves(rank)})


def _steps_before_saves(rank: RankData) -> list[int]:
    ends = rank.steps["start_ns"] + rank.steps["step_ns"]
    begins = [span.start_ns for span in rank.spans if span.what == CHECKPOINT_SPAN]
    rows = np.searchsorted(ends, np.array(begins, dtype=np.int64), side="right")
    numbers = np.append(rank.steps["step"], rank.steps["step"][-1:] + 1)
    return [int(numbers[row]) for row in rows.tolist()] if len(rank.steps) else []
