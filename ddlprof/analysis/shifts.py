"""How much a time differs between two sides, with an interval that no time below zero is in.

A machine with other work makes all times of a run longer by a factor, so runs differ by factors, and an interval is one
of the ratio of B to A: taken from the logarithms of both. What single steps add to the mean of a run adds up, and stays
a sum. A part of a step may be zero, which has no logarithm; its root stands in for it, as the variance of a part is
proportional to the part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ddlprof.analysis.uncertainty import MeanEstimate, t_quantile

FASTER, SLOWER, NONE = "faster", "slower", "none"
FEW_STEPS = "too few steps"
_LEAST = 1e-6
"""The least part of the longer side that a mean is taken for, so that its logarithm and its slope are finite."""


@dataclass(frozen=True)
class Side:
    """The mean of one side, and how much the means of equal runs differ."""

    found: MeanEstimate
    noise: float = 0.0
    """The standard deviation among equal runs, as a share of `whole`; 0 where the scatter of several runs is it."""
    whole: float = 0.0
    """What the noise is a share of: the mean step, in ns."""


@dataclass(frozen=True)
class Shift:
    """How much longer something is in B than in A, in ns, with its confidence interval."""

    ns: float
    low_ns: float | None
    """The end of the interval; None, like `high_ns`, if there are too few steps to know the noise."""
    high_ns: float | None
    of_ns: float | None = None
    """What shares of it are of, if that is not A's mean step."""

    @property
    def word(self) -> str:
        """faster, slower, none (the interval holds 0) or too few steps."""
        if self.low_ns is None or self.high_ns is None:
            return FEW_STEPS
        return SLOWER if self.low_ns > 0 else FASTER if self.high_ns < 0 else NONE


@dataclass(frozen=True)
class Transform:
    """The function of a time on whose values intervals are made."""

    to: Callable[[float], float]
    back: Callable[[float, float], float]
    """By how much a time is longer whose value is so much larger."""
    noise: Callable[[Side], float]
    """The noise among equal runs on its values."""


RATIO = Transform(math.log, lambda time, more: time * math.expm1(more), lambda side: side.noise)
"""For a step or a job: a factor."""
ROOT = Transform(
    math.sqrt,
    lambda time, more: more * (2 * math.sqrt(time) + more) if more > -math.sqrt(time) else -time,
    lambda side: side.noise * math.sqrt(side.whole) / 2,
)
"""For parts: each gets the share of the whole's variance that it has of the whole, so that variances add up."""


def shift(a: Side | None, b: Side | None, error: float, by: Transform = RATIO) -> Shift | None:
    """B minus A with an interval that is wrong with this probability; None: one side has too few steps.

    The degrees of freedom are Welch's, which does not assume equal variances. Both ends of a side's mean count for
    themselves, as a mean that may be near zero has a longer way up than down.
    """
    if a is None or b is None:
        return None
    least = _LEAST * max(a.found.mean, b.found.mean)
    difference = b.found.mean - a.found.mean
    if least <= 0:
        return Shift(difference, difference, difference)
    noise = by.noise(a) ** 2 + by.noise(b) ** 2
    own = [sum(_ways(side.found, 1.0, least, by)) / 2 for side in (a, b)]
    known = sum(each**4 / side.found.freedom for each, side in zip(own, (a, b), strict=True))
    variance = noise + sum(each**2 for each in own)
    quantile = t_quantile(error, variance**2 / known if known else math.inf)
    (down_a, up_a), (down_b, up_b) = (_ways(side.found, quantile, least, by) for side in (a, b))
    start = max(a.found.mean, least)
    moved = by.to(max(b.found.mean, least)) - by.to(start)
    low, high = moved - _length(down_b, up_a, noise, quantile), moved + _length(up_b, down_a, noise, quantile)
    return _around(difference, by.back(start, low), by.back(start, high))


def _around(difference: float, low: float, high: float) -> Shift:
    """The shift, whose interval holds it also where a mean was taken for a little more than it is."""
    return Shift(difference, min(low, difference), max(high, difference))


def _ways(found: MeanEstimate, deviations: float, least: float, by: Transform) -> tuple[float, float]:
    """How far the mean reaches down and up by so many standard deviations."""
    reach, mean = deviations * math.sqrt(found.variance), max(found.mean, least)
    at = by.to(mean)
    return at - by.to(max(mean - reach, least)), by.to(mean + reach) - at


def _length(one: float, other: float, noise: float, quantile: float) -> float:
    return math.sqrt(one**2 + other**2 + quantile**2 * noise)
