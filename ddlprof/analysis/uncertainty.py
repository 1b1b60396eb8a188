"""Confidence intervals for means and shares of a run, for series of steps in which neighbours are correlated.

Steps are not independent: loaders deliver in bursts, machines drift, slow steps come in groups. The usual standard
error is too small for drifts and too large for bursts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.thresholds import STANDARD_ERRORS

MIN_STEPS = 5
"""The fewest steps for an interval. So few give a wide one."""
WAVES = 8
"""The number of cosine waves from which the variance is computed, which is its degrees of freedom. Their periods are
from twice the run to a quarter of it: longer than bursts of a loader, and as long as drifts that one run can show."""
STEPS_PER_WAVE = 16
"""The fewest steps for each wave. Shorter runs have fewer waves, so that periods stay longer than correlations."""
MIN_WAVES = 2
BATCHES = 20
"""The number of batches of steps whose median is the typical step."""
MIN_BATCHES = 10
MIN_BATCH_STEPS = 8


@dataclass(frozen=True)
class MeanEstimate:
    """A mean in ns, the variance of its error in ns², and the degrees of freedom of that variance."""

    mean: float
    variance: float
    freedom: float


def mean_error(values: NDArray[np.float64]) -> tuple[float, float]:
    """The variance of the mean of an autocorrelated series, and its degrees of freedom.

    The equal-weighted cosine estimator of the long-run variance (Müller 2007; Lazarus, Lewis, Stock and Watson, "HAR
    Inference: Recommendations for Practice", 2018): the mean square of the series' first cosine transforms, to be used
    with quantiles of Student's t. Needs `MIN_STEPS` values.
    """
    count = len(values)
    waves = max(MIN_WAVES, min(WAVES, count // STEPS_PER_WAVE))
    sums = _cosines(count, waves) @ (values - values.mean())
    return float(sums @ sums) / waves / count, float(waves)


@lru_cache(maxsize=2)
def _cosines(count: int, waves: int) -> NDArray[np.float64]:
    """The first `waves` cosine waves over `count` steps, each with the square sum 1.

    The same for all times of a run.
    """
    phase = np.pi * (np.arange(count) + 0.5) / count
    return np.asarray(math.sqrt(2 / count) * np.cos(np.outer(np.arange(1, waves + 1), phase)))


def typical(values: NDArray[np.float64]) -> MeanEstimate | None:
    """The median of the means of batches of neighbouring steps: the typical step without single slow ones.

    The median of single steps would not be typical if a loader delivers in bursts. None: too few steps.
    """
    batches = min(BATCHES, len(values) // MIN_BATCH_STEPS)
    if batches < MIN_BATCHES:
        return None
    means = np.array([part.mean() for part in np.array_split(values, batches)])
    middle = float(np.median(means))
    deviation = 1.4826 * float(np.median(np.abs(means - middle)))  # the standard deviation, if the means are normal
    return MeanEstimate(middle, math.pi / 2 * deviation**2 / batches, batches - 1.0)  # if normal


def t_quantile(two_sided: float, freedom: float) -> float:
    """The value that Student's t exceeds, on either side, with probability `two_sided`.

    `freedom`: the degrees of freedom; infinite for the normal distribution.
    """
    from scipy.special import stdtrit  # not at the top: every card would wait for it

    return float(stdtrit(freedom, 1 - two_sided / 2))


def lowest_share(count: float, of: float, correlation: float = 0.0) -> float:
    """The lower end of Wilson's interval for a share, which also holds for few counts and shares near 0 or 1.

    `correlation`: that of each observation with the one before it. It reduces the number of independent observations.
    """
    if not of:
        return 0.0
    share, square = count / of, STANDARD_ERRORS**2
    independent = of * (1 - min(correlation, 0.99)) / (1 + correlation)
    middle = share + square / (2 * independent)
    half = STANDARD_ERRORS * math.sqrt(share * (1 - share) / independent + square / (4 * independent**2))
    return max(0.0, (middle - half) / (1 + square / independent))
