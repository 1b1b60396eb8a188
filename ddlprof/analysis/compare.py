"""What differs between two runs, or two groups of runs, class by class, and whether that is more than noise.

One run shows how its steps vary, but not how runs vary among each other: with a single run on a side, a stated
allowance stands for that (`noise`); several runs show it themselves. Gates (`--fail-on`) limit how much
longer B may be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.clocks import on_device
from ddlprof.analysis.contention import is_starved, own_steps_ns
from ddlprof.analysis.run import Attempt
from ddlprof.analysis.summary import by_step
from ddlprof.analysis.thresholds import BUSY_CPU_PERCENT
from ddlprof.analysis.uncertainty import MIN_STEPS, Estimate, mean_error, t_quantile, typical
from ddlprof.base.errors import UserError
from ddlprof.model.classes import TIMES

NOISE = 0.01
"""The standard deviation of the mean steps of equal runs, as a share of the step, where nobody says another."""
QUEUED_NOISE = 0.5
"""What is added to it for other work on the host, as a share of the time that the main thread waited for a processor:
of a run that waited for a fifth of its time, others may wait for a tenth or for a third."""
BUSY_NOISE = 0.05
"""The same where that was not counted and the processors of the host had no time left for whatever reason."""
OWN_NOISE, OWN_QUEUED_NOISE = 0.04, 0.05
"""The same two for the step without what the main thread waited for a processor: other work slows what it computes in
between, too, by caches, clocks and cores that are shared, and what loader workers wait is not taken out."""
ERROR = 0.025
"""The probability that the step of equal runs is called different; the same for all other times together."""

FASTER, SLOWER, NONE = "faster", "slower", "none"
NOT_MEASURED, FEW_STEPS = "not measured", "too few steps"


@dataclass(frozen=True)
class Measured:
    """The times of one run, in nanoseconds a step (or a sample): means over the steady steps, and step by step."""

    means: dict[str, float | None]
    series: dict[str, NDArray[np.float64]]
    noise: float
    """The standard deviation of the mean steps of runs like this one, as a share of the step."""
    own_steps: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """The step without waiting for a processor, second by second; empty where it was not counted."""
    own_noise: float = OWN_NOISE
    """The same as `noise`, for `own`."""
    queued_share: float | None = None
    """The share of the time that the main thread waited for a processor."""

    @property
    def step(self) -> float:
        """The mean step."""
        return self.means["step"] or 0.0


@dataclass(frozen=True)
class Shift:
    """How much longer something is in B, in nanoseconds, and the interval that this is known with."""

    ns: float
    low_ns: float | None
    """None, like the next field, where too few steps tell nothing of the noise."""
    high_ns: float | None

    @property
    def word(self) -> str:
        """faster, slower, none (the interval holds 0) or too few steps."""
        if self.low_ns is None or self.high_ns is None:
            return FEW_STEPS
        return SLOWER if self.low_ns > 0 else FASTER if self.high_ns < 0 else NONE


@dataclass(frozen=True)
class Difference:
    """One time of `TIMES` in A and in B. None: not measured."""

    name: str
    a_ns: float | None
    b_ns: float | None
    mean: Shift | None
    """The difference of the means; None where one side has not measured it."""
    typical: Shift | None
    """The difference of what it takes without single slow steps; None as well where there are too few steps."""
    own: Shift | None = None
    """The difference of the step without what the main thread waited for a processor; None where that was little."""

    @property
    def shifts(self) -> list[Shift]:
        """The differences of the mean, as it was and without waiting for a processor."""
        return [each for each in (self.mean, self.own) if each is not None]

    @property
    def word(self) -> str:
        """faster, slower, none, not measured or too few steps."""
        return self.mean.word if self.mean else NOT_MEASURED


def usual_noise(queued_share: float | None, cpu_percent: float | None) -> float:
    """How runs differ from each other, as far as one of them shows it: how long it waited for a processor.

    `cpu_percent`: how busy the processors of its host were, where that is not known.
    """
    if queued_share is not None:
        return math.hypot(NOISE, QUEUED_NOISE * queued_share)
    return BUSY_NOISE if cpu_percent is not None and cpu_percent >= BUSY_CPU_PERCENT else NOISE


def own_noise(queued_share: float | None) -> float:
    """How equal runs differ from each other in the step without what the main thread waited for a processor."""
    return math.hypot(OWN_NOISE, OWN_QUEUED_NOISE * (queued_share or 0.0))


def measured(attempt: Attempt, samples: float = 1.0, noise: float = NOISE) -> Measured:
    """The times of a run's steady steps, divided by the samples of a step where they are to be for each sample."""
    means = {name: attempt.summary.mean_ns(name) for name in TIMES}
    series = by_step([rank.times for rank in attempt.ranks])
    return Measured(
        {name: None if mean is None else mean / samples for name, mean in means.items()},
        {name: values / samples for name, values in series.items()},
        noise,
        _own_steps(attempt) / samples,
        min(noise, own_noise(attempt.queued_share)),
        attempt.queued_share,
    )


def _own_steps(attempt: Attempt) -> NDArray[np.float64]:
    """The steps of the rank that waited most for a processor: the other ranks wait for it.

    Empty on the timeline of a device, which may compute on while its host waits.
    """
    queued = attempt.queued_shares
    if not queued or on_device([rank.data for rank in attempt.ranks]):
        return np.zeros(0)
    most = max(queued, key=lambda rank: queued[rank])
    return next(own_steps_ns(rank.data, rank.times.steady) for rank in attempt.ranks if rank.data.rank == most)


def compare(a: Sequence[Measured], b: Sequence[Measured]) -> list[Difference]:
    """Every time of `TIMES`, B against A. Of each run a step was measured."""
    together = sum(_is_tested(name, a, b) for name in TIMES) - 1  # the step is tested by itself
    own = (
        shift(_own_side(a), _own_side(b), ERROR / 2) if any(is_starved(run.queued_share) for run in (*a, *b)) else None
    )
    step = _difference("step", a, b, ERROR / 2 if own else ERROR)
    others = (_difference(name, a, b, ERROR / max(together, 1)) for name in TIMES if name != "step")
    return [replace(step, own=own), *others]


def _own_side(runs: Sequence[Measured]) -> list[Estimate] | None:
    """As `_side`, of the step without waiting for a processor."""
    if len(runs) == 1:
        own = runs[0].own_steps
        if len(own) < MIN_STEPS:
            return None
        mean = float(own.mean())
        return [Estimate(mean, *mean_error(own)), between_runs(runs[0].own_noise, mean, mean)]
    if not all(len(run.own_steps) for run in runs):
        return None
    return [_mean_of_runs([float(run.own_steps.mean()) for run in runs])]


def _is_tested(name: str, a: Sequence[Measured], b: Sequence[Measured]) -> bool:
    means = [run.means[name] for run in (*a, *b)]
    return None not in means and any(means)


def _difference(name: str, a: Sequence[Measured], b: Sequence[Measured], error: float) -> Difference:
    means = _mean(name, a), _mean(name, b)
    if means[0] is None or means[1] is None:
        return Difference(name, *means, None, None)
    mean = shift(_side(name, a, _mean_of), _side(name, b, _mean_of), error)
    usual = shift(_side(name, a, _typical_of), _side(name, b, _typical_of), error)
    return Difference(name, *means, mean or Shift(means[1] - means[0], None, None), usual)


def _mean(name: str, runs: Sequence[Measured]) -> float | None:
    """The mean over runs, each of which counts the same; None where one has not measured it."""
    means = [mean for run in runs if (mean := run.means[name]) is not None]
    return sum(means) / len(means) if len(means) == len(runs) else None


def _mean_of(run: Measured, name: str) -> Estimate | None:
    mean, values = run.means[name], run.series[name]
    if mean is None or len(values) < MIN_STEPS:
        return None
    return Estimate(mean, *mean_error(values))


def _typical_of(run: Measured, name: str) -> Estimate | None:
    return typical(run.series[name])


def _side(name: str, runs: Sequence[Measured], of: Callable[[Measured, str], Estimate | None]) -> list[Estimate] | None:
    """The mean of a side with the parts of its variance; None: too few steps."""
    found = [each for run in runs if (each := of(run, name)) is not None]
    if len(found) < len(runs):
        return None
    if len(found) == 1:
        step = of(runs[0], "step")
        return [found[0], between_runs(runs[0].noise, found[0].mean, step.mean if step else runs[0].step)]
    return [_mean_of_runs([each.mean for each in found])]


def _mean_of_runs(means: Sequence[float]) -> Estimate:
    """The mean of several runs, whose scatter is what is known of how they differ."""
    return Estimate(float(np.mean(means)), float(np.var(means, ddof=1)) / len(means), len(means) - 1.0)


def step_error(attempt: Attempt) -> Estimate | None:
    """The mean step of a run, and how far its steps let it be from that of an endless one; None: too few steps."""
    return _mean_of(measured(attempt), "step")


def between_runs(noise: float, mean: float, step: float) -> Estimate:
    """The differences among equal runs that one of them does not show: zero on average, with a variance.

    Each class has the share of the step's variance that it has of the step: then they add up to it.
    """
    return Estimate(0.0, noise**2 * step * max(mean, 0.0), math.inf)


def shift(a: list[Estimate] | None, b: list[Estimate] | None, error: float) -> Shift | None:
    """B minus A, each the sum of its estimates, by Welch's interval: their variances are not taken to be equal."""
    if a is None or b is None:
        return None
    parts = [*a, *b]
    difference = sum(each.mean for each in b) - sum(each.mean for each in a)
    variance = sum(each.variance for each in parts)
    known = sum(each.variance**2 / each.freedom for each in parts)
    half = math.sqrt(variance) * t_quantile(error, variance**2 / known if known else math.inf)
    return Shift(difference, difference - half, difference + half)


_UNITS_NS = {"us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_LIMIT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%|us|µs|ms|s)", re.ASCII)

BROKEN, KEPT, IN_NOISE = "broken", "kept", "within the noise"


@dataclass(frozen=True)
class Gate:
    """The most by which a time may grow: a share of A's step, or nanoseconds."""

    name: str
    text: str
    """The gate as it was typed: `data=5%`."""
    share: float | None = None
    ns: float | None = None


@dataclass(frozen=True)
class GateResult:
    """A gate and what came of it."""

    gate: Gate
    state: str
    """broken, kept, or within the noise: then B is above the limit, and that may be chance."""
    limit_ns: float
    difference_ns: float

    @property
    def broken(self) -> bool:
        """Whether the comparison fails."""
        return self.state == BROKEN


def parse_gates(text: str) -> list[Gate]:
    """The gates of `data=5%,step=3ms`. Raises UserError where one is no gate or names no class."""
    return [_gate(each.strip()) for each in text.split(",") if each.strip()]


def _gate(text: str) -> Gate:
    name, equals, limit = (part.strip() for part in text.partition("="))
    if name not in TIMES:
        raise UserError(f"--fail-on {text!r}: no class is called {name!r}; known: {', '.join(TIMES)}")
    found = _LIMIT.fullmatch(limit)
    if not equals or found is None:
        raise UserError(f"--fail-on {text!r}: give what {name} may grow by: {name}=5% (of A's step) or {name}=8ms")
    number, unit = float(found[1]), found[2]
    if not math.isfinite(number):
        raise UserError(f"--fail-on {text!r}: the limit is too large to mean anything")
    if unit == "%":
        return Gate(name, text, share=number / 100)
    return Gate(name, text, ns=number * _UNITS_NS[unit])


def check_gates(gates: Sequence[Gate], differences: Sequence[Difference]) -> list[GateResult]:
    """Every gate against the comparison. Raises UserError where a class was not measured on both sides."""
    found = {each.name: each for each in differences}
    step_ns = found["step"].a_ns or 0.0
    return [_result(gate, found[gate.name], step_ns) for gate in gates]


def _result(gate: Gate, difference: Difference, step_ns: float) -> GateResult:
    if difference.mean is None:
        missing = [side for side, ns in (("A", difference.a_ns), ("B", difference.b_ns)) if ns is None]
        raise UserError(
            f"--fail-on {gate.text!r}: {gate.name} was not measured in {' and '.join(missing)}, so nothing can be said"
        )
    limit_ns = gate.share * step_ns if gate.share is not None else gate.ns or 0.0
    broken = [each for each in difference.shifts if each.ns > limit_ns and each.word == SLOWER]
    if broken:
        return GateResult(gate, BROKEN, limit_ns, broken[0].ns)
    return GateResult(gate, IN_NOISE if difference.mean.ns > limit_ns else KEPT, limit_ns, difference.mean.ns)
