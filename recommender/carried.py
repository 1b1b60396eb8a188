"""What no model predicts is taken from where it was measured, without the time spent waiting for a processor there.

Other work on the machine of a run is not on the next one. What it took is left out of what is expected and kept in the
upper end: it is only known how long the main thread waited in all, not at what.
"""

from __future__ import annotations

from typing import NamedTuple

from recommender.estimate import CARRIED, Range
from recommender.workload import JobFacts, Measurement

CARRIED_FACTOR = 2.0
"""The 80 % interval of what is carried over reaches from half of it to twice as much. A judgement, not a fit."""


def undisturbed(measured: Measurement | JobFacts) -> float:
    """The share of its time that the job did not wait for a processor."""
    return 1.0 - (measured.queued_share or 0.0)


def carried_range(seconds: float, facts: JobFacts) -> Range:
    """So many seconds of a measured job on another machine."""
    expected = seconds * undisturbed(facts)
    return Range(expected, expected / CARRIED_FACTOR, seconds * CARRIED_FACTOR)


class Carried(NamedTuple):
    """The classes of a step that are taken from a measured run."""

    seconds: dict[str, float]
    waited_s: float
    """What was left out: the time spent waiting for a processor."""


def carried_over(nearest: Measurement | None, samples: int, basis: list[str]) -> Carried:
    """For a step of so many samples, with which some of the classes grow."""
    if nearest is None:
        return Carried(dict.fromkeys(CARRIED, 0.0), 0.0)
    measured = nearest.carried_s
    if any(measured.values()):
        basis.append("copies to the device and other time: carried over from a measured run")
    grown = samples / (nearest.batch_per_gpu * nearest.grad_accum)
    there = {name: seconds * (grown if CARRIED[name] else 1.0) for name, seconds in measured.items()}
    here = {name: seconds * undisturbed(nearest) for name, seconds in there.items()}
    return Carried(here, sum(there.values()) - sum(here.values()))
