"""How long a job takes that is interrupted now and then, and how often it should save: closed formulas.

Interruptions come at a constant rate whatever came before (a Poisson process). An interrupted job starts again, which
takes `restart_s`, and goes on from its last checkpoint; an interruption may also come while it saves or starts.

- J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
- J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

_MOST_EXPONENT = 20.0
"""Beyond, the job practically never ends: a stretch is tried e to this power times, which is half a billion."""
_SERIES_BELOW = 1e-4
"""Below, differences of nearly equal exponentials are replaced by the first terms of their series."""


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Young 1974: work of sqrt(2 x checkpoint x time between failures) seconds from one checkpoint to the next."""
    return math.sqrt(2 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Daly 2006, equation 37: seconds of work from one checkpoint to the next at which the job ends soonest.

    sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d for a checkpoint that takes d < 2M, and M otherwise.
    """
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2 * mtbf_s)
    return math.sqrt(2 * checkpoint_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_s


@dataclass(frozen=True)
class Duration:
    """The time of an interrupted job: its mean, its standard deviation and the least, without an interruption (s)."""

    mean_s: float
    deviation_s: float
    least_s: float
    none_probability: float
    """The probability that the job is not interrupted at all."""

    @property
    def lost_s(self) -> float:
        """The mean time lost to interruptions: work done again, and restarts."""
        return self.mean_s - self.least_s

    def quantile_s(self, share: float) -> float:
        """The time in which this share of such jobs is done.

        What is lost, where anything is, is taken as log-normal with the mean and the deviation that the formulas give.
        """
        some = 1 - self.none_probability
        if share <= self.none_probability or some <= 0 or self.lost_s <= 0:
            return self.least_s
        mean = self.lost_s / some
        square = (self.deviation_s**2 + self.lost_s**2) / some
        sigma = math.sqrt(max(math.log(square) - 2 * math.log(mean), 1e-12))
        z = NormalDist().inv_cdf(min((share - self.none_probability) / some, 1 - 1e-9))
        return self.least_s + mean * math.exp(sigma * z - sigma**2 / 2)


def completion(work_s: float, every_s: float, checkpoint_s: float, restart_s: float, per_s: float) -> Duration:
    """The time of `work_s` seconds of work with a checkpoint after every `every_s` of it, the last stretch without.

    `per_s` is the rate of interruptions in 1/s. The mean of a stretch of a seconds, its checkpoint included, is
    exp(R / M) (exp(a / M) - 1) M, as in Daly's complete model; its variance follows from that of the wait for a time of
    R + a seconds without an interruption. Infinite where no stretch can be expected to end.
    """
    whole = max(math.ceil(work_s / every_s - 1e-9) - 1, 0)
    last_s = work_s - whole * every_s
    least_s = work_s + whole * checkpoint_s
    if per_s <= 0:
        return Duration(least_s, 0.0, least_s, 1.0)
    if per_s * (max(every_s + checkpoint_s, last_s) + restart_s) > _MOST_EXPONENT:
        return Duration(math.inf, math.inf, least_s, 0.0)
    full, last = (_stretch(length, restart_s, per_s) for length in (every_s + checkpoint_s, last_s))
    mean_s = whole * full[0] + last[0]
    variance = whole * full[1] + last[1]
    return Duration(mean_s, math.sqrt(max(variance, 0.0)), least_s, math.exp(-per_s * least_s))


def _stretch(length_s: float, restart_s: float, per_s: float) -> tuple[float, float]:
    """Mean and variance of the time until a stretch of this length is done.

    Its first try ends, or is interrupted after F seconds. From then on, restart and stretch have to pass without an
    interruption, which takes Z: the wait for the first gap of that length in a Poisson process.
    """
    a, b = per_s * length_s, per_s * (length_s + restart_s)
    mean_z = math.expm1(b)
    square_z = _variance_of_wait(b) + mean_z**2
    fails = -math.expm1(-a)
    mean_first = fails
    if a < _SERIES_BELOW:
        square_first, until_failure = a * a * (1 - 2 * a / 3), a * a / 2 * (1 - 2 * a / 3)
    else:
        square_first = 2 * (fails - a * math.exp(-a))
        until_failure = fails - a * math.exp(-a)
    mean = mean_first + fails * mean_z
    square = square_first + 2 * until_failure * mean_z + fails * square_z
    return mean / per_s, (square - mean**2) / per_s**2


def _variance_of_wait(b: float) -> float:
    """The variance of the wait for a gap of b mean times between events, in squares of that time."""
    if b < _SERIES_BELOW:
        return b**3 / 3
    return math.exp(2 * b) - 2 * b * math.exp(b) - 1


def expected_interruptions(duration: Duration, per_s: float) -> float:
    """The mean number of interruptions of a job with this duration: as many as in any time of its mean."""
    return per_s * duration.mean_s
