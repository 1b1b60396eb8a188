"""What a predictor needs of a measured job besides its times: counts of a step, the cost of a sample, recurring work.

How long the training waits for data is not here, but in the class `data`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.job_time import JobTime
from ddlprof.model.records import CHECKPOINT, EVALUATION, Flag, LoaderCost

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt, RankAnalysis


@dataclass(frozen=True)
class SampleCost:
    """The mean cost of loading a sample."""

    cpu_s: float
    """Seconds of processor time on all cores."""
    read_bytes: float | None
    """Bytes read; None: not counted."""
    blocked_s: float | None = None
    """Seconds for which one worker is blocked on storage or network; None: not counted."""


def reductions_per_step(attempt: Attempt) -> float | None:
    """Collectives in a steady step that add up over ranks, as a mean; None without communication."""
    steps = sum(int(np.count_nonzero(rank.times.steady)) for rank in attempt.ranks)
    if attempt.comm is None or not steps:
        return None
    return sum(rank.traffic.reductions for rank in attempt.ranks) / steps


def kernels_per_step(attempt: Attempt) -> float | None:
    """Kernels and copies launched on a device, communication left out; None without profiler windows."""
    windows = [window for rank in attempt.ranks for window in rank.data.windows if window.kernels is not None]
    updates = sum(window.updates for window in windows)
    return sum(window.kernels or 0 for window in windows) / updates if updates else None


def loader_cost(attempt: Attempt) -> SampleCost | None:
    """The cost of loading a sample of the training data; None where it was not measured."""
    window = attempt.window
    if not window.steady.any():
        return None
    first_steady_step = int(window.steps[np.argmax(window.steady)])
    return sample_cost([rank.data.loader_costs for rank in attempt.ranks], first_steady_step)


def sample_cost(ranks: Sequence[Sequence[LoaderCost]], first_steady_step: int) -> SampleCost | None:
    """The mean over all ranks, from their cumulative records; None if there are none.

    What was loaded before the steady steps (imports, first opens) is left out if there is a record from then. Bytes are
    the larger of those asked for and those from storage: data that read() found in the page cache would come from
    storage elsewhere, and mapped files are read without asking.
    """
    spans = [_since(records, first_steady_step) for records in ranks if records]
    samples = sum(span.samples for span in spans)
    if samples <= 0:
        return None
    asked, storage = _total([span.asked_bytes for span in spans]), _total([span.storage_bytes for span in spans])
    blocked_ns = _total([span.blocked_ns for span in spans])
    counted = [value for value in (asked, storage) if value is not None]
    return SampleCost(
        cpu_s=sum(span.cpu_ns for span in spans) / samples / 1e9,
        read_bytes=max(counted) / samples if counted else None,
        blocked_s=None if blocked_ns is None else blocked_ns / samples / 1e9,
    )


def _since(records: Sequence[LoaderCost], step: int) -> LoaderCost:
    """The last record minus the last one up to `step`, unless nothing would remain."""
    last = records[-1]
    before = next((record for record in reversed(records) if record.step <= step), None)
    if before is None or before.samples >= last.samples:
        return last
    return LoaderCost(
        last.step,
        last.samples - before.samples,
        last.cpu_ns - before.cpu_ns,
        _difference(last.asked_bytes, before.asked_bytes),
        _difference(last.storage_bytes, before.storage_bytes),
        _difference(last.blocked_ns, before.blocked_ns),
    )


def _difference(last: int | None, before: int | None) -> int | None:
    return None if last is None or before is None else last - before


def _total(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


_FLAGS = {EVALUATION: Flag.EVALUATION, CHECKPOINT: Flag.CHECKPOINT}


@dataclass(frozen=True)
class RecurringWork:
    """Recurring work besides steps. `every_steps`: None if it was seen only before the first step or after the last."""

    seconds: float
    """The mean time of one occurrence."""
    every_steps: float | None


def recurring_work(attempt: Attempt, job: JobTime) -> dict[str, RecurringWork]:
    """The recurring work that was seen and timed: `evaluation`, `checkpoint` and `epoch_start`."""
    found: dict[str, RecurringWork] = {}
    for what, flag in _FLAGS.items() if job.timed else ():
        # Of one rank: ranks do it at the same time.
        rank = max(attempt.ranks, key=lambda rank: sum(span.what == what for span in rank.data.spans))
        habit = _recurring(rank, what)
        if habit is not None and attempt.window.unusual_flags & flag:  # otherwise it is in the mean step
            found[what] = habit
    waited = job.parts_s["epoch_start"]
    if job.epochs and waited is not None:
        found["epoch_start"] = RecurringWork(waited / job.epochs, _steps_an_epoch(attempt))
    return found


def _recurring(rank: RankAnalysis, what: str) -> RecurringWork | None:
    """Recurring work of one kind.

    The interval is that between occurrences with steps on both sides: the one at the end may have come early in a short
    run.
    """
    spans = [span for span in rank.data.spans if span.what == what]
    if not spans:
        return None
    seconds = sum(span.duration_ns for span in spans) / len(spans) / 1e9
    starts, numbers = rank.data.steps["start_ns"], rank.data.steps["step"]
    if not len(starts):
        return RecurringWork(seconds, None)
    last = int(starts[-1] + rank.data.steps["step_ns"][-1])
    inside = [span.start_ns for span in spans if int(starts[0]) < span.start_ns < last]
    # An occurrence lies in the step after it, so that many steps came before it.
    before = [int(numbers[np.searchsorted(starts, begin, side="right") - 1]) for begin in inside]
    between = [steps for steps in before if steps > 0]
    return RecurringWork(seconds, max(between) / len(between) if between else None)


def _steps_an_epoch(attempt: Attempt) -> float | None:
    """The number of steps in an epoch; None if only one epoch began."""
    rank = min(attempt.ranks, key=lambda rank: rank.data.rank)
    began = rank.data.steps["step"][rank.flags & int(Flag.EPOCH_START) != 0]
    return float(began[-1] - began[0]) / (len(began) - 1) if len(began) > 1 else None
