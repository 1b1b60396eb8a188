"""Failures and the taking away of spot machines in the time of a plan: how often they come, and what they cost.

A job whose machines are equal and work together stops when one of them does, so that rates add up over machines. It
saves at the interval that costs least, and starts again from its last checkpoint (`ddlprof.recommender.failures`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ddlprof.base.units import duration, significant
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.estimate import Range
from ddlprof.recommender.failures import Duration, completion, daly_interval_s, expected_interruptions

SPOT, ON_DEMAND = "spot", "on_demand"
SPOT_PER_HOUR = 0.1
"""The interruptions of one spot machine in an hour where none are given: an assumption, on the careful side. Published
figures are three orders of magnitude apart. AWS's Spot Instance Advisor gives the share of machines taken away in a
month, in bands from below 5 % to above 20 % (0.00007 to 0.0003 an hour, as described in April 2024); traces of p3
machines on EC2 that were replayed for trainings (Bamboo, NSDI 2023) lose 10 to 33 % of them in an hour."""
FAILURES_PER_GPU_HOUR = 419 / (54 * 24 * 16_384)
"""The failures of machines on demand, for each GPU and hour: Llama 3 405B had 419 unexpected interruptions in 54 days
on 16,384 H100 (arXiv 2407.21783 of July 2024, section 3.3.4 and table 5). One GPU runs for 5.8 years between two."""
LEAST_COUNTED = 0.01
"""Failures of machines on demand are counted where at least so many are expected in the whole job."""
_WRITTEN_BYTES_PER_S = 1e9
_STATES = 3.0
"""A checkpoint that was not measured has the weights and two states of the optimizer, as large as the gradients, and is
written at 1 GB/s: an assumption."""
_LEAST_CHECKPOINT_S = 1.0
_ASSUMED_FACTOR = 3.0
"""An assumed checkpoint takes a third to three times as long, as an 80 % interval."""


class Checkpoint(NamedTuple):
    """The time of one checkpoint, for which the training waits (s), and where it is from."""

    seconds: Range
    measured: bool


def assumed_checkpoint(gradient_bytes: float | None, writers: int = 1) -> Checkpoint:
    """A checkpoint of a model that was never seen saving; `writers` machines write parts of it at once."""
    seconds = max(_STATES * (gradient_bytes or 0.0) / _WRITTEN_BYTES_PER_S / writers, _LEAST_CHECKPOINT_S)
    return Checkpoint(Range(seconds, seconds / _ASSUMED_FACTOR, seconds * _ASSUMED_FACTOR), measured=False)


def rate_per_hour(asked: Mapping[str, float], instance_type: str, pricing: str, nodes: int, gpus: int) -> float:
    """The interruptions in an hour of all machines of a plan together.

    `asked` has rates of one machine by its type (for spot), `spot` and `on_demand`; others are assumed.
    """
    if pricing == SPOT:
        return nodes * asked.get(instance_type, asked.get(SPOT, SPOT_PER_HOUR))
    return nodes * asked[ON_DEMAND] if ON_DEMAND in asked else gpus * FAILURES_PER_GPU_HOUR


def check_rates(asked: Mapping[str, float]) -> Mapping[str, float]:
    """The rates as they are. Raises PredictionError for one that cannot be."""
    for name, rate in asked.items():
        if not 0 <= rate < 3600:
            raise PredictionError(
                f"interruptions per hour of {name}: a number from 0 to 3600 is expected, not {rate:g}"
            )
    return asked


@dataclass(frozen=True)
class Interrupted:
    """The time of an interrupted job after its first start, and what is in it. Times are seconds."""

    time: Range
    per_hour: float
    """The interruptions in an hour, of all machines."""
    number: float
    """How many are expected."""
    every_s: float
    """The work between two checkpoints."""
    checkpoint_s: float
    """All checkpoints together."""
    lost_s: float
    """Work done again and restarts."""
    basis: tuple[str, ...]


class Stretch(NamedTuple):
    """What is interrupted: the work of the job, and what a restart takes besides the work lost. Ranges in seconds."""

    work: Range
    restart: Range
    checkpoint: Checkpoint
    step_s: float


def interrupted(job: Stretch, per_hour: float) -> Interrupted | None:
    """The time of the job with so many interruptions an hour; None where it can never be expected to end.

    The interval joins that of the work with the spread of the interruptions, as independent of each other.
    """
    per_s = per_hour / 3600
    work_s = job.work.mean_s
    every_s = best_interval_s(job, per_s)
    found = _completion(job, every_s, per_s, "mean_s")
    if not math.isfinite(found.mean_s):
        return None
    low, high = (_completion(job, every_s, per_s, end).mean_s for end in ("low_s", "high_s"))
    mean_s = found.mean_s
    time = Range(
        mean_s,
        max(mean_s - math.hypot(mean_s - low, mean_s - found.quantile_s(0.1)), job.work.low_s),
        mean_s + math.hypot(high - mean_s, max(found.quantile_s(0.9) - mean_s, 0.0)),
    )
    number = expected_interruptions(found, per_s)
    return Interrupted(
        time, per_hour, number, every_s, found.least_s - work_s, found.lost_s, tuple(_sentences(job, every_s))
    )


def best_interval_s(job: Stretch, per_s: float) -> float:
    """Daly's interval in whole steps: at least one, and at most the whole job."""
    if per_s <= 0:
        return job.work.mean_s
    wanted = daly_interval_s(job.checkpoint.seconds.mean_s, 1 / per_s)
    steps = max(round(wanted / job.step_s), 1) if job.step_s > 0 else 1
    return min(steps * job.step_s or wanted, job.work.mean_s)


def _completion(job: Stretch, every_s: float, per_s: float, end: str) -> Duration:
    work_s, save_s, restart_s = (getattr(each, end) for each in (job.work, job.checkpoint.seconds, job.restart))
    # The steps between checkpoints stay the same where steps are faster or slower than expected.
    scale = work_s / job.work.mean_s
    return completion(work_s, every_s * scale, save_s, restart_s, per_s)


def _sentences(job: Stretch, every_s: float) -> list[str]:
    save_s = job.checkpoint.seconds.mean_s
    whence = "as in the run" if job.checkpoint.measured else "not seen in the run, assumed by the size of the model"
    return [
        f"checkpoints: {significant(save_s)} s each ({whence}), after every {duration(every_s)} of work, which costs"
        " least by Daly's formula",
        f"restarts: {duration(job.restart.mean_s)} to start machines and job again; a new machine is had at once",
    ]


def source_of(asked: Mapping[str, float], instance_type: str, pricing: str) -> str:
    """Where the rate of a plan is from, in a sentence."""
    if pricing == SPOT:
        if instance_type in asked or SPOT in asked:
            return "interruptions: as often as you say"
        return (
            f"interruptions: {SPOT_PER_HOUR:g} an hour for each spot machine, assumed (published: 0.00007 to 0.33;"
            " --interruptions-per-hour)"
        )
    if ON_DEMAND in asked:
        return "failures: as often as you say"
    return (
        f"failures: one in {1 / FAILURES_PER_GPU_HOUR:,.0f} GPU-hours, as in the training of Llama 3 on 16,384 H100"
        " (arXiv 2407.21783)"
    )


def with_source(found: Interrupted, source: str) -> Interrupted:
    """The same with the sentence on the rate."""
    return replace(found, basis=(source, *found.basis))
