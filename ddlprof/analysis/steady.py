"""The steady window: the steps whose mean is the headline.

The window excludes the warm-up, unusual steps, and steps that do not fill a whole loader round: a loader with k workers
delivers in bursts of k, so only a mean over whole rounds is unbiased. All ranks of an attempt share one window, because
a rank that evaluates or saves makes the others wait in the same step. Steps that only some of the ranks have (because
one was killed earlier) are excluded, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.records import Aggregate, Flag

if TYPE_CHECKING:
    from ddlprof.store import IntArray, StepTable

MIN_WARMUP_STEPS = 3  # lazy initialisation, the first all-reduce, the buckets DDP rebuilds after its first step
MAX_WARMUP_STEPS = 20  # autotuning and filling the allocator's cache end well before
PREFETCHED_ROUNDS = 2  # loader workers fill their queues (prefetch_factor 2) while the first steps run slowly
SETTLED_FACTOR = 1.2  # a step this much above the 95th percentile of the later ones is still warming up
MAX_ROUND_STEPS = 64  # with more workers than that, rounds are longer than the runs they would be cut from
SHARED_SHARE = 0.5  # a rank that stopped before half of the steps does not decide which ones count

UNUSUAL = (Flag.EPOCH_START, Flag.EVALUATION, Flag.CHECKPOINT, Flag.COMPILE, Flag.TRACED)


@dataclass(frozen=True)
class SteadyWindow:
    """The steady and the warm-up steps of an attempt, the same for all its ranks."""

    steps: IntArray
    """All step numbers of the attempt, ascending."""
    steady: NDArray[np.bool_]
    warmup: NDArray[np.bool_]
    notes: list[str] = field(default_factory=list)
    unusual_flags: int = 0
    """The flags that make a step unusual in this job."""

    def is_steady(self, steps: IntArray) -> NDArray[np.bool_]:
        """A mask over the step numbers of one rank."""
        return _look_up(self.steps, self.steady, steps)

    def is_warmup(self, steps: IntArray) -> NDArray[np.bool_]:
        """A mask over the step numbers of one rank."""
        return _look_up(self.steps, self.warmup, steps)


def _look_up(steps: IntArray, mask: NDArray[np.bool_], wanted: IntArray) -> NDArray[np.bool_]:
    return np.asarray(mask[np.searchsorted(steps, wanted)])


def find_steady(
    ranks: Sequence[StepTable],
    loader_workers: int = 0,
    summed: Sequence[Aggregate] = (),
    begins: Sequence[int] | IntArray = (0,),
) -> SteadyWindow:
    """The steady window of an attempt, or of some of its phases.

    `summed`: the steps of all ranks that were not kept. Their sums are exact, so from the first of them on the steps
    fill whole rounds together with the others. `begins`: with which steps the phases begin, ascending.
    """
    number = np.concatenate([t["step"] for t in ranks]) if ranks else np.zeros(0, dtype=np.int64)
    steps, index, present = np.unique(number, return_inverse=True, return_counts=True)
    if not len(steps):
        return SteadyWindow(steps, np.zeros(0, dtype=bool), np.zeros(0, dtype=bool))
    step_ns = np.zeros(len(steps), dtype=np.int64)
    flags = np.zeros(len(steps), dtype=np.int64)
    np.maximum.at(step_ns, index, np.concatenate([t["step_ns"] for t in ranks]))
    np.bitwise_or.at(flags, index, np.concatenate([t["flags"] for t in ranks]))

    round_steps = steps_per_round(loader_workers, _usual(np.concatenate([t["microbatches"] for t in ranks])))
    unusual_flags = unusual_here(flags, summed, len(ranks))
    unusual = flags & unusual_flags != 0
    # An import may begin in the middle of a training, whose first steps are then not there to be left out.
    warm = steps - begins[0] < warmup_steps(step_ns, unusual, loader_workers)
    if len(begins) > 1:
        phase = np.searchsorted(begins, steps, side="right") - 1
        warm |= (phase > 0) & (steps - np.asarray(begins)[phase] < MIN_WARMUP_STEPS)
    everywhere = present == len(ranks)
    if everywhere.sum() < SHARED_SHARE * len(steps):
        everywhere[:] = True
    plain = ~warm & ~unusual & everywhere
    rounds = _whole_rounds(steps, plain, round_steps, min((each.first_step for each in summed), default=None))
    choices = (
        (rounds, ""),
        (
            plain,
            f"too few steps in a row for whole loader rounds of {round_steps} steps; the mean is over single steps",
        ),
        (~warm, "every step after the warm-up was unusual (evaluation, checkpoint, ...): they are all in the mean"),
        (np.arange(len(steps)) > 0, "too few steps to tell the warm-up: only the first step was left out"),
        (np.ones(len(steps), dtype=bool), "a single step was measured: it is warm-up, and all there is"),
    )
    steady, note = next((mask, note) for mask, note in choices if mask.any())
    return SteadyWindow(steps, steady, warm & ~steady, [note] if note else [], unusual_flags)


def steps_per_round(loader_workers: int, microbatches: int) -> int:
    """The smallest number of steps that uses up whole rounds of one batch from each worker."""
    if loader_workers < 2:
        return 1
    round_steps = loader_workers // math.gcd(loader_workers, max(microbatches, 1))
    return round_steps if round_steps <= MAX_ROUND_STEPS else 1


def warmup_steps(step_ns: IntArray, unusual: NDArray[np.bool_], loader_workers: int) -> int:
    """How many of the first steps are warm-up: at least 3, until the step time settles, at most 20 or a quarter."""
    limit = max(MIN_WARMUP_STEPS, min(MAX_WARMUP_STEPS, len(step_ns) // 4))
    later = step_ns[limit:][~unusual[limit:]]
    least = min(limit, max(MIN_WARMUP_STEPS, PREFETCHED_ROUNDS * loader_workers))
    if not len(later):
        return least
    slow = np.flatnonzero((step_ns[:limit] > SETTLED_FACTOR * np.percentile(later, 95)) & ~unusual[:limit])
    return max(least, int(slow[-1]) + 1 if len(slow) else 0)


def unusual_here(flags: IntArray, summed: Sequence[Aggregate] = (), ranks: int = 1) -> int:
    """The flags that make a step unusual in this job: those of `UNUSUAL` that at most half of the steps carry.

    `summed`: further steps, of so many ranks.
    """
    half = (len(flags) + sum(each.steps for each in summed) / ranks) / 2
    return sum(
        int(f)
        for f in UNUSUAL
        if np.count_nonzero(flags & f) + sum(each.steps for each in summed if each.flags & f) / ranks <= half
    )


def _usual(values: IntArray) -> int:
    return int(np.median(values)) if len(values) else 1


def _whole_rounds(
    steps: IntArray, mask: NDArray[np.bool_], round_steps: int, capped_from: int | None
) -> NDArray[np.bool_]:
    """Cuts each run of consecutive steps of `mask` to a multiple of `round_steps`."""
    kept = np.array(mask)
    if round_steps == 1:
        return kept
    chosen = np.flatnonzero(mask if capped_from is None else mask & (steps < capped_from))
    breaks = np.flatnonzero((np.diff(chosen) != 1) | (np.diff(steps[chosen]) != 1)) + 1
    for segment in np.split(chosen, breaks):
        kept[segment[len(segment) - len(segment) % round_steps :]] = False
    return kept
