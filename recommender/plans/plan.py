"""A plan: a job on a number of equal machines, with its predicted time and cost, or the reason why it is rejected.

The time counts from ordering the machines to the last step; the cost is rounded up as the cloud bills.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ddlprof.base.units import duration, significant
from ddlprof.instance_catalog import Catalog, InstanceType, Price
from ddlprof.instance_catalog.clouds import cloud_named
from ddlprof.recommender.compute.memory_fit import MemoryVerdict, figures_of
from ddlprof.recommender.estimate import Estimate, StepTimes, WithTimes
from ddlprof.recommender.estimate import Range as SecondsRange
from ddlprof.recommender.layout import Layout
from ddlprof.recommender.plans.candidates import Sizing
from ddlprof.recommender.plans.interruptions import (
    LEAST_COUNTED,
    Checkpoint,
    Interrupted,
    Stretch,
    assumed_checkpoint,
    interrupted,
    rate_per_hour,
    source_of,
    with_source,
)
from ddlprof.recommender.plans.overheads import NO_OVERHEADS, NOTHING, Overheads, plus

STARTUP_S = 180.0
"""The seconds from ordering a machine until the job starts: provisioning, boot, environment. An assumption, not a
measurement: minutes for a plain image, more for large images and for data sets that must be copied first."""

MINIMUM_S = 60.0
"""The shortest time that is billed, in seconds (AWS, Linux on demand: one minute)."""

OVER_BUDGET = "over budget"
OVER_COST = "over the highest cost"
TOO_OFTEN = "interrupted too often"


def cost_usd(usd_per_hour: float, nodes: int, time_s: float, cloud: str) -> float:
    """The price of `nodes` machines for `time_s` seconds, rounded up as the cloud bills; without disks and traffic."""
    granularity_s = cloud_named(cloud).granularity_s
    billed_s = max(MINIMUM_S, math.ceil(time_s / granularity_s) * granularity_s)
    return usd_per_hour * nodes * billed_s / 3600


@dataclass(frozen=True)
class Plan(WithTimes):
    """A job on a number of equal machines. Times are seconds; None: not known, or not predicted as the plan is
    rejected.

    `compute_s`, `data_s` and so on are those of `times`.
    """

    cloud: str
    region: str
    instance_type: str
    nodes: int
    placement: tuple[int, ...]
    """GPUs used on each node: all of them, since all are paid for."""
    gpus: int
    """The GPUs of all nodes."""
    gpu_model: str
    pricing: str
    """The way to pay: on_demand or spot."""
    usd_per_hour: float | None
    """The price of all nodes together."""
    price_as_of: str
    """The ISO date of the price, or empty."""
    price_basis: str
    """The same as `ddlprof.instance_catalog.Price.basis`."""
    batch_per_gpu: int
    grad_accum: int
    """The forward passes for one update."""
    global_batch: int
    steps: int
    step_s: float | None
    step_low_s: float | None
    step_high_s: float | None
    time_s: float | None
    """The time of the whole job, start-up included; low and high are the ends of the 80 % interval."""
    time_low_s: float | None
    time_high_s: float | None
    cost_usd: float | None
    cost_low_usd: float | None
    cost_high_usd: float | None
    times: StepTimes | None
    """The classes of one step."""
    bound_by: str | None
    """The class that takes the most time."""
    memory_gib_needed: float | None
    """The memory needed on one GPU."""
    fits_memory: bool | None
    """Whether it fits, at least perhaps."""
    meets_budget: bool | None
    """Whether the upper end of the time meets the budget."""
    extrapolated: bool | None
    reason: str
    """The reason for rejection, `NAME: DETAILS`; empty where the plan is accepted."""
    basis: tuple[str, ...]
    """What the prediction rests on and what was assumed."""
    cpu_arch: str | None = None
    """The host's processor architecture: x86_64 or arm64."""
    list_cost_usd: float | None = None
    """The cost at list price, where the price is the user's own or discounted and a list price is known."""
    start_up_s: float | None = None
    """This and the next three fields are the parts of `time_s` besides `Limits.startup_s` and the steps: the job's own
    start-up, the first batches of its epochs, its evaluations and its checkpoints. None: not observed in the run."""
    epoch_start_s: float | None = None
    evaluation_s: float | None = None
    checkpoint_s: float | None = None
    layout: str | None = None
    """How the model is divided over the GPUs, as `recommender.layout.parse_layout` reads it; None: by no layout."""
    mfu: float | None = None
    """Model FLOPs of the step over the peak of all GPUs; None: not known."""
    tokens_per_s: float | None = None
    """Tokens that all GPUs train on in a second; None: not known."""
    dimensions: Mapping[str, float] | None = None
    """Exposed communication (s) by the dimension of the layout; None: no layout."""
    interruptions_per_hour: float | None = None
    """Of all machines together; None, like the next three fields: interruptions are not counted."""
    interruptions: float | None = None
    """How many are expected in the whole job."""
    checkpoint_every_s: float | None = None
    """The work from one checkpoint to the next; `checkpoint_s` is then that of these checkpoints."""
    interrupted_s: float | None = None
    """The part of `time_s` in which work is done again, or machines and job start again."""
    memory_verdict: str | None = None
    """One of `ddlprof.recommender.compute.memory_fit.VERDICTS`; None: not known."""
    memory_fit_probability: float | None = None
    """The probability that the step fits on the GPU, from 0 to 1; None: not known."""
    would_fit_with: tuple[str, ...] = ()
    """The options with each of which it would fit, where it fits perhaps."""
    energy_kwh: float | None = None
    """What the GPUs take at most: the power of their boards by data sheet for the whole time."""

    @property
    def is_discounted(self) -> bool:
        """Whether a user's discount was taken off the price."""
        return ", less " in self.price_basis

    @property
    def rejection(self) -> str:
        """The name of the reason for rejection; empty where the plan is accepted."""
        return self.reason.partition(":")[0]


@dataclass(frozen=True)
class Limits:
    """The work of the job, and the limits that a plan must meet."""

    samples: float
    budget_s: float
    min_nodes: int
    max_nodes: int
    max_cost_usd: float | None
    startup_s: float
    interruptions: Mapping[str, float] = field(default_factory=dict)
    """The interruptions of one machine in an hour, see `ddlprof.recommender.plans.interruptions.rate_per_hour`."""

    @property
    def nodes(self) -> range:
        """The numbers of nodes to try."""
        return range(self.min_nodes, self.max_nodes + 1)


@dataclass(frozen=True)
class Candidate:
    """A job on a number of machines, without a price, with an estimate or a reason for rejection."""

    instance: InstanceType
    region: str
    sizing: Sizing
    memory_gib_needed: float | None = None
    memory: MemoryVerdict | None = None
    """Whether it fits; None: not known."""
    estimate: Estimate | None = None
    reason: str = ""
    basis: tuple[str, ...] = ()
    overheads: Overheads = NO_OVERHEADS
    layout: Layout | None = None
    checkpoint: Checkpoint | None = None
    """One checkpoint of the job; None: of the size that is usual."""
    memory_cures: tuple[str, ...] = ()
    """The options with each of which it would fit, where it fits perhaps."""


def make_plan(candidate: Candidate, pricing: str, price: Price | None, limits: Limits) -> Plan:
    """Makes the plan of a candidate at a price; the price is None where none is known."""
    instance, sizing, estimate = candidate.instance, candidate.sizing, candidate.estimate
    steps = math.ceil(limits.samples / sizing.global_batch) if sizing.global_batch else 0
    step_s = (estimate.step_s, estimate.low_s, estimate.high_s) if estimate else (None, None, None)
    whole = _whole_time(candidate, pricing, steps, limits)
    counted, time_s = whole.interrupted, whole.ends_s
    cost = [
        None if t is None or not price else cost_usd(price.usd_per_hour, sizing.nodes, t, price.cloud) for t in time_s
    ]
    listed = price.list_usd_per_hour if price else None
    return Plan(
        cloud=instance.cloud,
        region=candidate.region,
        instance_type=instance.instance_type,
        nodes=sizing.nodes,
        placement=sizing.placement,
        gpus=sizing.gpus,
        gpu_model=instance.gpu_model,
        pricing=pricing,
        usd_per_hour=price.usd_per_hour * sizing.nodes if price else None,
        price_as_of=price.as_of if price else "",
        price_basis=price.basis if price else "",
        batch_per_gpu=sizing.batch_per_gpu,
        grad_accum=sizing.grad_accum,
        global_batch=sizing.global_batch,
        steps=steps,
        step_s=step_s[0],
        step_low_s=step_s[1],
        step_high_s=step_s[2],
        time_s=time_s[0],
        time_low_s=time_s[1],
        time_high_s=time_s[2],
        cost_usd=cost[0],
        cost_low_usd=cost[1],
        cost_high_usd=cost[2],
        times=estimate.times if estimate else None,
        bound_by=estimate.times.largest if estimate else None,
        memory_gib_needed=candidate.memory_gib_needed,
        **_memory_of(candidate) | _parts_of(candidate, counted),
        meets_budget=None if time_s[2] is None else time_s[2] <= limits.budget_s,
        extrapolated=estimate.extrapolated if estimate else None,
        reason=candidate.reason or whole.reason or _over(time_s[2], cost[2], limits),
        basis=(*candidate.basis, *(counted.basis if counted else ())),
        cpu_arch=instance.cpu_arch,
        layout=candidate.layout.text() if candidate.layout else None,
        mfu=estimate.mfu if estimate else None,
        tokens_per_s=estimate.tokens_per_s if estimate else None,
        dimensions=estimate.dimensions if estimate else None,
        list_cost_usd=cost_usd(listed, sizing.nodes, time_s[0], instance.cloud) if listed and time_s[0] else None,
        interruptions_per_hour=counted.per_hour if counted else None,
        interruptions=counted.number if counted else None,
        checkpoint_every_s=counted.every_s if counted else None,
        interrupted_s=counted.lost_s if counted else None,
    )


def _memory_of(candidate: Candidate) -> dict[str, Any]:
    """The fields of a plan on whether it fits in memory."""
    return {**figures_of(candidate.memory), "would_fit_with": candidate.memory_cures}


def _parts_of(candidate: Candidate, counted: Interrupted | None) -> dict[str, Any]:
    """The parts of the time besides steps; `counted`: interruptions, with their checkpoints."""
    parts = {f"{part}_s": seconds.mean_s for part, seconds in candidate.overheads.parts.items()}
    return parts | ({"checkpoint_s": counted.checkpoint_s} if counted else {})


def with_energy(plan: Plan, catalog: Catalog) -> Plan:
    """The plan with the energy of its GPUs, where its time and the power of their boards are known."""
    board_w = catalog.gpu(plan.gpu_model).tdp_w
    if plan.time_s is None or board_w is None:
        return plan
    return replace(plan, energy_kwh=board_w * plan.gpus * plan.time_s / 3.6e6)


class _WholeTime(NamedTuple):
    """The time of a job; None where it is not predicted."""

    time: SecondsRange | None
    """With the start of the machines."""
    interrupted: Interrupted | None = None
    """None: interruptions are not counted."""
    reason: str = ""
    """Why the job cannot be expected to end."""

    @property
    def ends_s(self) -> tuple[float | None, float | None, float | None]:
        """The mean and the ends of the interval."""
        return (self.time.mean_s, self.time.low_s, self.time.high_s) if self.time else (None, None, None)


def _whole_time(candidate: Candidate, pricing: str, steps: int, limits: Limits) -> _WholeTime:
    estimate, sizing = candidate.estimate, candidate.sizing
    if estimate is None:
        return _WholeTime(None)
    overheads = candidate.overheads
    stepping = SecondsRange(*(steps * each for each in (estimate.step_s, estimate.low_s, estimate.high_s)))
    machines = SecondsRange(*[limits.startup_s] * 3)
    plain = plus(machines, stepping, overheads.total)
    per_hour = rate_per_hour(limits.interruptions, candidate.instance.instance_type, pricing, sizing.nodes, sizing.gpus)
    expected = per_hour * plain.mean_s / 3600
    if not per_hour or (expected < LEAST_COUNTED and pricing != "spot"):
        return _WholeTime(plain)
    parts = overheads.parts
    starting = parts.get("start_up", NOTHING)
    work = plus(stepping, *(seconds for name, seconds in parts.items() if name not in ("start_up", "checkpoint")))
    restart = plus(machines, starting)
    checkpoint = candidate.checkpoint or assumed_checkpoint(None)
    found = interrupted(Stretch(work, restart, checkpoint, estimate.step_s), per_hour)
    if found is None:
        often = duration(3600 / per_hour)
        return _WholeTime(None, reason=f"{TOO_OFTEN}: every {often}, and {duration(restart.mean_s)} to start again")
    source = source_of(limits.interruptions, candidate.instance.instance_type, pricing)
    return _WholeTime(plus(restart, found.time), with_source(found, source))


def _over(time_high_s: float | None, cost_high_usd: float | None, limits: Limits) -> str:
    """The reason for rejection if an upper end exceeds a limit; else empty."""
    if time_high_s is not None and time_high_s > limits.budget_s:
        return (
            f"{OVER_BUDGET}: up to {significant(time_high_s / 3600)} h, budget {significant(limits.budget_s / 3600)} h"
        )
    highest_usd = limits.max_cost_usd
    if cost_high_usd is not None and highest_usd is not None and cost_high_usd > highest_usd:
        return f"{OVER_COST}: up to {cost_high_usd:.2f} USD, limit {highest_usd:.2f} USD"
    return ""
