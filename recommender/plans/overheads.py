"""The time that a job takes besides its steps on another machine, from what was measured.

Start-up, first batches of epochs and checkpoints are carried over, with wide intervals, as no model predicts another
machine's disk. Time waiting for a processor on the measured machine is left out. An evaluation is assumed to compute
like the training, on as many GPUs as in the run, so that only its computation changes with the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddlprof.base.units import significant
from ddlprof.recommender.data_and_other import carried_range
from ddlprof.recommender.estimate import Estimate, Range
from ddlprof.recommender.plans.candidates import Sizing
from ddlprof.recommender.plans.interruptions import Checkpoint, assumed_checkpoint
from ddlprof.recommender.workload import JobFacts, Recurring

PARTS = ("start_up", "epoch_start", "evaluation", "checkpoint")
_NAMES = {"epoch_start": "first batches of epochs", "evaluation": "evaluations", "checkpoint": "checkpoints"}


@dataclass(frozen=True)
class Overheads:
    """The seconds of each of `PARTS` that was observed, and the sentences on what they rest on."""

    parts: dict[str, Range]
    basis: tuple[str, ...] = ()

    @property
    def total(self) -> Range:
        """The sum of the parts."""
        return plus(*self.parts.values())


NOTHING = Range(0.0, 0.0, 0.0)


def plus(*ranges: Range) -> Range:
    """The sum. The ends of the intervals are added, as a slow machine is slow in every part."""
    return Range(sum(r.mean_s for r in ranges), sum(r.low_s for r in ranges), sum(r.high_s for r in ranges))


NO_OVERHEADS = Overheads({})


def checkpoint_of(facts: JobFacts | None, gradient_bytes: float | None, writers: int) -> Checkpoint:
    """One checkpoint of the job: as long as in the run, or assumed by the size of the model (`assumed_checkpoint`)."""
    if facts is None or facts.checkpoint is None:
        return assumed_checkpoint(gradient_bytes, writers)
    return Checkpoint(carried_range(facts.checkpoint.seconds, facts), measured=True)


def overheads_of(facts: JobFacts | None, estimate: Estimate, sizing: Sizing, samples: float) -> Overheads:
    """The overheads of a job of `samples` samples; none where no whole job was measured."""
    if facts is None:
        return NO_OVERHEADS
    parts = {}
    if facts.start_up_s is not None:
        parts["start_up"] = carried_range(facts.start_up_s, facts)
    for name in ("epoch_start", "checkpoint"):
        recurring: Recurring | None = getattr(facts, name)
        if recurring is not None:
            parts[name] = carried_range(recurring.seconds * _times(recurring, samples), facts)
    if facts.evaluation is not None:
        parts["evaluation"] = _evaluations(facts.evaluation, facts, estimate, sizing, samples)
    return Overheads(parts, tuple(_sentences(facts)))


def _times(recurring: Recurring, samples: float) -> float:
    """The number of occurrences in the whole job."""
    return 1.0 if recurring.every_samples is None else samples / recurring.every_samples


def _evaluations(evaluation: Recurring, facts: JobFacts, estimate: Estimate, sizing: Sizing, samples: float) -> Range:
    seconds = evaluation.seconds * _times(evaluation, samples)
    if facts.compute_s_per_sample is None:
        return carried_range(seconds, facts)
    compute_s_per_sample = estimate.times.compute_s / (sizing.batch_per_gpu * sizing.grad_accum)
    computing = seconds * facts.compute_share * compute_s_per_sample / facts.compute_s_per_sample
    rest = carried_range(seconds * (1 - facts.compute_share), facts)
    low, high = (computing * end / estimate.step_s for end in (estimate.low_s, estimate.high_s))
    return Range(computing + rest.mean_s, low + rest.low_s, high + rest.high_s)


def _sentences(facts: JobFacts) -> Iterator[str]:
    for name, what in _NAMES.items():
        recurring: Recurring | None = getattr(facts, name)
        if recurring is None:
            yield f"{what}: not seen in the run, not counted"
        elif recurring.every_samples is None:
            yield f"{what}: {significant(recurring.seconds)} s once, as the run does not tell how often"
        else:
            often = f"one in {recurring.every_samples:,.0f} samples"
            yield f"{what}: {significant(recurring.seconds)} s each in the run, {often}"
