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
from ddlprof.analysis.shifts import RATIO, ROOT, SLOWER, Shift, Side, shift
from ddlprof.analysis.summary import by_step
from ddlprof.analysis.thresholds import BUSY_CPU_PERCENT
from ddlprof.analysis.uncertainty import MIN_STEPS, MeanEstimate, mean_error, typical
from ddlprof.base.errors import UserError
from ddlprof.model.classes import TIMES

NOISE = 0.01
"""The standard deviation of the mean steps of equal runs, as a share of the step, if the user gives none."""
QUEUED_NOISE = 0.5
"""What is added for other work on the host, for each unit of the share of time that the main thread waited for a
processor. If one run waited for a fifth of its time, equal runs may wait for a tenth or a third."""
BUSY_NOISE = 0.05
"""What is added if waiting was not counted and the host's processors were fully busy."""
OWN_NOISE, OWN_QUEUED_NOISE = 0.04, 0.05
"""`NOISE` and `QUEUED_NOISE` for the step without the main thread's waits for a processor. Other work also slows
computing, by shared caches, clocks and cores, and the waits of loader workers are still in it."""
ERROR = 0.025
"""The probability of calling the step of equal runs different; the same for all other times together."""

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class RunTimes:
    """The times of one run, in nanoseconds a step (or a sample): means over the steady steps, and step by step."""

    means: dict[str, float | None]
    series: dict[str, NDArray[np.float64]]
    noise: float
    """The standard deviation of the mean steps of runs like this one, as a share of the step."""
    own_steps: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """The step without waits for a processor, by intervals of about a second; empty if not counted."""
    own_noise: float = OWN_NOISE
    """Like `noise`, for the step without waits for a processor."""
    queued_share: float | None = None
    """The share of the time that the main thread waited for a processor."""

    @property
    def step(self) -> float:
        """The mean step."""
        return self.means["step"] or 0.0


@dataclass(frozen=True)
class Difference:
    """One time of `TIMES` in A and in B. None: not measured."""

    name: str
    a_ns: float | None
    b_ns: float | None
    mean: Shift | None
    """The difference of the means; None where one side has not measured it."""
    typical: Shift | None
    """The difference of the typical step, without single slow ones; None also if there are too few steps."""
    own: Shift | None = None
    """The difference of the step without waits for a processor; None if waits were short."""

    @property
    def shifts(self) -> list[Shift]:
        """The differences of the mean, with and without waits for a processor."""
        return [each for each in (self.mean, self.own) if each is not None]

    @property
    def word(self) -> str:
        """faster, slower, none, not measured or too few steps."""
        return self.mean.word if self.mean else NOT_MEASURED


def usual_noise(queued_share: float | None, cpu_percent: float | None) -> float:
    """How much equal runs differ, estimated from how long the main thread waited for a processor in one of them.

    `cpu_percent`: how busy the host's processors were; used if the waits were not counted.
    """
    if queued_share is not None:
        return math.hypot(NOISE, QUEUED_NOISE * queued_share)
    return BUSY_NOISE if cpu_percent is not None and cpu_percent >= BUSY_CPU_PERCENT else NOISE


def own_noise(queued_share: float | None) -> float:
    """How much equal runs differ in the step without the main thread's waits for a processor."""
    return math.hypot(OWN_NOISE, OWN_QUEUED_NOISE * (queued_share or 0.0))


def measured(attempt: Attempt, samples: float = 1.0, noise: float = NOISE) -> RunTimes:
    """The times of a run's steady steps, divided by `samples`.

    `samples`: the number of samples in a step if times are wanted for each sample, else 1.
    """
    means = {name: attempt.summary.mean_ns(name) for name in TIMES}
    series = by_step([rank.times for rank in attempt.ranks])
    return RunTimes(
        {name: None if mean is None else mean / samples for name, mean in means.items()},
        {name: values / samples for name, values in series.items()},
        noise,
        _own_steps(attempt) / samples,
        min(noise, own_noise(attempt.queued_share)),
        attempt.queued_share,
    )


def _own_steps(attempt: Attempt) -> NDArray[np.float64]:
    """The steps, without waits for a processor, of the rank that waited most, as other ranks wait for it.

    Empty on a device's timeline: a device may compute while its host waits.
    """
    queued = attempt.queued_shares
    if not queued or on_device([rank.data for rank in attempt.ranks]):
        return np.zeros(0)
    most = max(queued, key=lambda rank: queued[rank])
    return next(own_steps_ns(rank.data, rank.times.steady) for rank in attempt.ranks if rank.data.rank == most)


def compare(a: Sequence[RunTimes], b: Sequence[RunTimes]) -> list[Difference]:
    """Compares every time of `TIMES`, B against A. Each run has a measured step."""
    together = sum(_is_tested(name, a, b) for name in TIMES) - 1  # the step is tested by itself
    starved = any(is_starved(run.queued_share) for run in (*a, *b))
    own = _of_itself(_own_side(a), _own_side(b), ERROR / 2) if starved else None
    step = _difference("step", a, b, ERROR / 2 if own else ERROR)
    others = (_difference(name, a, b, ERROR / max(together, 1)) for name in TIMES if name != "step")
    return [replace(step, own=own), *others]


def _of_itself(a: Side | None, b: Side | None, error: float) -> Shift | None:
    """The difference, shares of which are of the same time in A."""
    found = shift(a, b, error)
    return replace(found, of_ns=a.found.mean) if found is not None and a is not None else None


def _own_side(runs: Sequence[RunTimes]) -> Side | None:
    """Like `_side`, for the step without waits for a processor."""
    if len(runs) == 1:
        own = runs[0].own_steps
        if len(own) < MIN_STEPS:
            return None
        mean = float(own.mean())
        return Side(MeanEstimate(mean, *mean_error(own)), runs[0].own_noise, mean)
    if not all(len(run.own_steps) for run in runs):
        return None
    return Side(mean_of_runs([float(run.own_steps.mean()) for run in runs]))


def _is_tested(name: str, a: Sequence[RunTimes], b: Sequence[RunTimes]) -> bool:
    means = [run.means[name] for run in (*a, *b)]
    return None not in means and any(means)


def _difference(name: str, a: Sequence[RunTimes], b: Sequence[RunTimes], error: float) -> Difference:
    means = _mean(name, a), _mean(name, b)
    if means[0] is None or means[1] is None:
        return Difference(name, *means, None, None)
    (a_mean, b_mean), (a_typical, b_typical) = ([_side(name, side, of) for side in (a, b)] for of in _ESTIMATES)
    by = RATIO if name == "step" else ROOT
    mean = shift(a_mean, b_mean, error, by)
    usual = _of_itself(a_typical, b_typical, error) if name == "step" else shift(a_typical, b_typical, error, by)
    return Difference(name, *means, mean or Shift(means[1] - means[0], None, None), usual)


def _mean(name: str, runs: Sequence[RunTimes]) -> float | None:
    """The mean over runs with equal weights; None if a run has not measured it."""
    means = [mean for run in runs if (mean := run.means[name]) is not None]
    return sum(means) / len(means) if len(means) == len(runs) else None


def _mean_of(run: RunTimes, name: str) -> MeanEstimate | None:
    mean, values = run.means[name], run.series[name]
    if mean is None or len(values) < MIN_STEPS:
        return None
    return MeanEstimate(mean, *mean_error(values))


def _typical_of(run: RunTimes, name: str) -> MeanEstimate | None:
    return typical(run.series[name])


_ESTIMATES = _mean_of, _typical_of


def _side(name: str, runs: Sequence[RunTimes], of: Callable[[RunTimes, str], MeanEstimate | None]) -> Side | None:
    """The mean of one side, with what is known of its error; None: too few steps."""
    found = [each for run in runs if (each := of(run, name)) is not None]
    if len(found) < len(runs):
        return None
    if len(found) == 1:
        step = of(runs[0], "step")
        return Side(found[0], runs[0].noise, step.mean if step else runs[0].step)
    return Side(mean_of_runs([each.mean for each in found]))


def mean_of_runs(means: Sequence[float]) -> MeanEstimate:
    """The mean of several runs, whose scatter gives the variance."""
    return MeanEstimate(float(np.mean(means)), float(np.var(means, ddof=1)) / len(means), len(means) - 1.0)


def step_error(attempt: Attempt) -> MeanEstimate | None:
    """The mean step of a run with the variance that comes from its number of steps; None: too few steps."""
    return _mean_of(measured(attempt), "step")


_UNITS_NS = {"us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_LIMIT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%|us|µs|ms|s)", re.ASCII)

BROKEN, KEPT, IN_NOISE = "broken", "kept", "within the noise"


@dataclass(frozen=True)
class Gate:
    """The most that a time may grow: a share of A's step, or nanoseconds."""

    name: str
    text: str
    """The gate as it was typed: `data=5%`."""
    share: float | None = None
    ns: float | None = None


@dataclass(frozen=True)
class GateResult:
    gate: Gate
    state: str
    """broken, kept, or within the noise: B is then above the limit, but maybe by chance."""
    limit_ns: float
    difference_ns: float

    @property
    def broken(self) -> bool:
        """Whether the comparison fails."""
        return self.state == BROKEN


def parse_gates(text: str) -> list[Gate]:
    """Parses gates such as `data=5%,step=3ms`. Raises UserError if one is not of this form or names no class."""
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
    """Checks every gate. Raises UserError if a class was not measured on both sides."""
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
