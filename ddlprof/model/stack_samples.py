"""How dense stack samples are in the course of a run: they become rare, and never end."""

from __future__ import annotations

_EVENLY_S = 750.0
START_LOOK_S = 0.25
"""The time between two looks before the first step."""


def sparseness(since_s: float) -> float:
    """How many times longer than at first the time between two stack samples is, so many seconds after the first one.

    It is 1 for 750 seconds, and from then on grows with the time: the number of samples with its logarithm only. So
    each sample stands for as many of the first ones.
    """
    return max(1.0, since_s / _EVENLY_S)
