"""What a prediction says: seconds with their 80 % interval, class by class, and what they rest on."""

from __future__ import annotations

from dataclasses import dataclass

Z80 = 1.2815515655446004
"""Standard deviations either side of the mean that hold 80 % of a normal distribution."""


@dataclass(frozen=True)
class Range:
    """A number of seconds and its 80 % interval."""

    mean_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class Estimate:
    """One optimizer step of a job on a target. Seconds; the six classes add up to `step_s`."""

    step_s: float
    low_s: float
    """Lower end of the 80 % interval of `step_s`."""
    high_s: float
    compute_s: float
    data_s: float
    h2d_s: float
    interconnect_s: float
    """Exposed communication that would remain if all ranks sat in one machine."""
    network_s: float
    """The price of going over the network."""
    other_s: float
    extrapolated: bool
    """The target lies outside what the coefficients were fitted on; the interval is wider."""
    basis: tuple[str, ...]
    """What the numbers rest on and what was assumed, one sentence each."""
