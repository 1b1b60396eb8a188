"""What a job loses when it is spread, and how long it is worth waiting for GPUs that are closer together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

from ddlprof.base.reading import NOT_NEGATIVE, Interval, settle, shown
from ddlprof.extensions.cluster.machines import Level
from ddlprof.extensions.cluster.policies.dally import LEASE_S, tuned_network_delay, tuned_rack_delay
from ddlprof.instance_catalog import table
from ddlprof.instance_catalog.errors import CatalogError
from ddlprof.recommender import Estimate, Measurement, PredictionError, Predicts, Target
from ddlprof.recommender.target import default_catalog, machine_of

HISTORY_LEASES = 72.0
"""The longest delay that is learned, 24 hours of leases, as in the simulation."""


_NEARER = {Level.RACK: "machine", Level.NETWORK: "rack"}
"""The level below each, as a history names it: a job waits for that before it takes GPUs further apart."""
_LINE_SHARE = 0.5
"""The share of the line rate that gradients are assumed to reach where nothing was fitted and none of their transfer is
hidden behind computation. It is a low assumption: large messages, of which such jobs have more than any job of the fit,
reach more."""
_NO_RACKS = "the network between racks is not known: give --between-racks-gbps"


@dataclass(frozen=True)
class Wait:
    """One line of a history: how long a job waited for GPUs in one machine, or in one rack."""

    gpus: Annotated[int, Interval(1, 1_000_000)]
    level: str
    """The level waited for: `machine` or `rack`."""
    waited_s: Annotated[float, NOT_NEGATIVE]

    def __post_init__(self) -> None:
        settle(self)


@dataclass(frozen=True)
class Ask:
    """Where a job is to run."""

    gpus: int
    per_machine: int
    """The number of GPUs of one machine."""
    target: Target
    """The machine; its placement is not used."""
    between_racks: Target | None = None
    """The same machine with the network between racks; None: that network is not known."""
    gradient_bytes: float | None = None
    """The bytes of all gradients that a step reduces; None: they are not known."""


class Estimated(NamedTuple):
    """A figure with its 80 % interval. One that was measured has no interval."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def surely(self) -> float:
        """The lower end of the interval, or the figure itself if it was measured."""
        return self.mean if self.low is None else self.low

    def times(self, factor: float, most: float = math.inf) -> Estimated:
        """The figure and its interval multiplied by `factor` and limited to `most`."""
        return Estimated(*(None if each is None else min(factor * each, most) for each in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class SpreadCost:
    """What a job loses on GPUs that are further apart."""

    level: Level
    placement: tuple[int, ...]
    slowdown: Estimated | None
    """The time of a step there divided by that on the closest placement; None: it is not known."""
    why_not: str | None = None
    """Why there is no slowdown, or no wait."""
    wait_share: Estimated | None = None
    """The wait for the next closer level that costs as much as not waiting, as a share of the rest of the run."""


@dataclass(frozen=True)
class Scaled:
    """A job on twice as many GPUs, which share the same batch of an update."""

    gpus: int
    placement: tuple[int, ...]
    speed_up: Estimated | None
    """How many times as fast it trains; None: it is not known."""
    why_not: str | None = None


@dataclass(frozen=True)
class Advice:
    """How far a job is slowed down at each level."""

    name: str
    gpus: int
    closest: tuple[int, ...]
    """The GPUs on each machine, as close together as they can be."""
    step_s: float | None
    """The seconds of a step on the closest placement; None: they are not known."""
    losses: tuple[SpreadCost, ...] = ()
    basis: tuple[str, ...] = ()
    scaled: Scaled | None = None

    def loss(self, level: Level) -> SpreadCost | None:
        """The cost at a level; None: the job never has it, as a job of one GPU."""
        return next((loss for loss in self.losses if loss.level == level), None)


def packed(gpus: int, per_machine: int) -> tuple[int, ...]:
    """The GPUs on each of the fewest machines that hold the job, evenly filled."""
    machines = -(-gpus // per_machine)
    return tuple(sorted((gpus // machines + (number < gpus % machines) for number in range(machines)), reverse=True))


def spread(gpus: int, per_machine: int) -> tuple[int, ...]:
    """The GPUs on each of twice as many machines as needed, as a busy cluster frees them first."""
    machines = min(2 * -(-gpus // per_machine), gpus)
    return packed(gpus, -(-gpus // machines))


def advise(name: str, ask: Ask, measured: Sequence[Measurement], predictor: Predicts) -> Advice:
    """Compares the levels: by measured steps where runs had both placements on such machines, else by predicted ones. A
    job that fits one machine can be spread over several machines of a rack, and over racks; a larger job only over
    racks."""
    closest = packed(ask.gpus, ask.per_machine)
    near = _step(closest, ask.target, measured, predictor)
    fits = len(closest) == 1
    losses: list[SpreadCost] = []
    nearer = 1.0
    for level, target in ((Level.RACK, ask.target), (Level.NETWORK, ask.between_racks)):
        if ask.gpus == 1 or (level == Level.RACK and not fits):
            continue
        placement = spread(ask.gpus, ask.per_machine) if fits else closest
        if target is None:
            losses.append(SpreadCost(level, placement, None, _NO_RACKS))
            continue
        # A run does not tell which of its machines shared a rack.
        far = _step(placement, target, measured if level == Level.RACK else (), predictor)
        slowdown = _slowdown(near, far, nearer, _line_rate_s(ask.gradient_bytes, len(placement), target))
        if isinstance(slowdown, str):
            losses.append(SpreadCost(level, placement, None, slowdown))
            continue
        outside = None if slowdown.low is None else _outside(near, far)
        shares = (None if each is None else max(each / nearer - 1, 0.0) for each in slowdown)
        losses.append(SpreadCost(level, placement, slowdown, outside, None if outside else Estimated(*shares)))  # type: ignore[arg-type]
        nearer = slowdown.mean
    predicted = near.predicted
    step_s = near.measured_s or (predicted.step_s if predicted else None)
    scaled = _scaled(near, ask, measured, predictor)
    return Advice(name, ask.gpus, closest, step_s, tuple(losses), predicted.basis if predicted else (), scaled)


def _scaled(near: _Step, ask: Ask, measured: Sequence[Measurement], predictor: Predicts) -> Scaled:
    """The job on twice as many GPUs: half as many forward passes on each, or, where there is one, of half the batch."""
    gpus, target = 2 * ask.gpus, ask.target
    placement, batch, passes = packed(gpus, ask.per_machine), target.batch_per_gpu or 1, target.grad_accum or 1
    if passes % 2 == 0:
        half = replace(target, grad_accum=passes // 2)
    elif batch % 2 == 0:
        half = replace(target, batch_per_gpu=batch // 2)
    else:
        return Scaled(gpus, placement, None, f"the batch of {batch} of a GPU cannot be halved")
    far = _step(placement, half, measured, predictor)
    if near.measured_s is not None and far.measured_s is not None:
        return Scaled(gpus, placement, Estimated(near.measured_s / far.measured_s))
    if near.predicted is None or far.predicted is None:
        return Scaled(gpus, placement, None, near.why_not or far.why_not)
    near_s, there = near.predicted.step_s, far.predicted
    return Scaled(gpus, placement, Estimated(*(near_s / each for each in (there.step_s, there.high_s, there.low_s))))


class _Step(NamedTuple):
    measured_s: float | None
    predicted: Estimate | None
    why_not: str = ""
    """Why the step cannot be predicted."""


def _step(placement: tuple[int, ...], target: Target, measured: Sequence[Measurement], predictor: Predicts) -> _Step:
    measured_s = _measured_s(measured, placement, target)
    try:
        return _Step(measured_s, predictor.predict(replace(target, placement=placement)))
    except PredictionError as error:
        return _Step(measured_s, None, str(error))


def _line_rate_s(gradient_bytes: float | None, machines: int, target: Target) -> float | None:
    """The least seconds that the network needs for the gradients of a step: each machine sends all but its own share,
    twice (reduce-scatter and all-gather). None: they are not known."""
    network_gbps = machine_of(target, default_catalog()).network_gbps
    if gradient_bytes is None or not network_gbps:
        return None
    return 2 * (machines - 1) / machines * gradient_bytes * 8 / (network_gbps * 1e9)


def _slowdown(near: _Step, far: _Step, least: float, line_rate_s: float | None) -> Estimated | str:
    """The slowdown from `near` to `far`, or why there is none. Both steps are measured or both are predicted, so that
    their common error cancels. The interval is that of the predicted far step. If that step lies outside the fit, its
    interval begins at the time at line rate, and it exceeds the near step by at most the time at half the line rate.
    `least` is the slowdown of the next closer level, below which it cannot fall."""
    if near.measured_s is not None and far.measured_s is not None:
        return Estimated(max(far.measured_s / near.measured_s, least), None, None)
    if near.predicted is None or far.predicted is None:
        return near.why_not or far.why_not
    near_s, there = near.predicted.step_s, far.predicted
    step_s, low_s = there.step_s, there.low_s
    if there.extrapolated and line_rate_s is not None:
        low_s = min(low_s, line_rate_s)
        step_s = max(min(step_s, near_s + line_rate_s / _LINE_SHARE), low_s)
    return Estimated(*(max(seconds / near_s, least) for seconds in (step_s, low_s, max(there.high_s, step_s))))


def _outside(*steps: _Step) -> str | None:
    """Why no wait can be derived from predicted steps; None: they lie within what was fitted."""
    for step in steps:
        if step.predicted is not None and step.predicted.extrapolated:
            return f"{step.predicted.basis[-1]}; no wait is told there"
    return None


def _measured_s(measured: Sequence[Measurement], placement: tuple[int, ...], target: Target) -> float | None:
    """The mean step in seconds of the runs with this placement, machine, batch and number of passes; None: there was no
    such run."""
    wanted = (
        target.instance_type, target.gpu_model, target.network_gbps, target.batch_per_gpu, target.grad_accum or 1
    )  # fmt: skip
    found = [
        run.step_s
        for run in measured
        if tuple(sorted(run.placement, reverse=True)) == placement
        and (run.instance_type, run.gpu_model, run.network_gbps, run.batch_per_gpu, run.grad_accum) == wanted
    ]
    return sum(found) / len(found) if found else None


def read_history(path: Path) -> list[Wait]:
    """Reads the waits of jobs on this cluster. Raises `CatalogError`, naming file and line."""

    def known(wait: Wait) -> None:
        if wait.level not in _NEARER.values():
            raise CatalogError(f"level: machine or rack is expected, not {shown(wait.level)}")

    return table.read(path, Wait, known, "the columns are gpus,level,waited_s; level is machine or rack")


def usual_wait_s(history: Sequence[Wait], gpus: int, level: Level) -> float:
    """The seconds that Dally would wait for GPUs closer together than `level`, from the waits of jobs with as many
    GPUs."""
    waits = [wait.waited_s / LEASE_S for wait in history if (wait.gpus, wait.level) == (gpus, _NEARER[level])]
    tuned = tuned_rack_delay if level == Level.RACK else tuned_network_delay
    return tuned([wait for wait in waits if wait >= 1], HISTORY_LEASES) * LEASE_S


def worth_waiting_s(loss: SpreadCost, rest_s: float, gpus: int, history: Sequence[Wait] | None) -> Estimated | None:
    """The longest wait in seconds before GPUs at this level are taken; None: it is not known.

    It is the wait that takes as long as the rest of the run loses on these GPUs. A job that waits so long without
    knowing when closer GPUs become free loses at most twice what it would lose if it knew (the ski-rental problem).
    With a history, the wait ends earlier if Dally's tuner would give up earlier.
    """
    if loss.wait_share is None:
        return None
    return loss.wait_share.times(rest_s, math.inf if history is None else usual_wait_s(history, gpus, loss.level))
