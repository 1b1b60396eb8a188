"""Ranks the candidates for a job by predicted time and cost, under a time budget.

Times come from the predictor, prices from the catalogue. Rejected candidates are kept, each with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ddlprof import instance_catalog
from ddlprof.instance_catalog import Catalog, InstanceType, Price
from ddlprof.instance_catalog.own_prices import OwnPrices, with_own_prices
from ddlprof.recommender.compute.memory_fit import DOES_NOT_FIT, PERHAPS
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.learned import Learned
from ddlprof.recommender.plans.candidates import (
    Sizing,
    TrainingSetup,
    choose_instances,
    describe_job,
    size_up,
)
from ddlprof.recommender.plans.eligible import check_question, choose_machines, order
from ddlprof.recommender.plans.memory import TOO_LARGE, MemoryFit, MemoryModel
from ddlprof.recommender.plans.overheads import checkpoint_of, overheads_of
from ddlprof.recommender.plans.plan import STARTUP_S, Candidate, Limits, Plan, make_plan, with_energy
from ddlprof.recommender.predictor import Predictor, Predicts
from ddlprof.recommender.settings import Settings
from ddlprof.recommender.target import Target
from ddlprof.recommender.workload import Workload

SHARDED = ("fsdp", "zero", "zero2", "deepspeed-zero2", "deepspeed-zero3")
"""Strategies whose checkpoints are written by all machines, each its part."""
MAX_CANDIDATES = 25_000
"""The largest product of types, nodes, batches and prices. So many take half a minute, and a few hundred MB as files.
"""


def recommend(
    workload: Workload,
    *,
    samples: float,
    budget_s: float,
    region: str | None = None,
    pricing: str | Sequence[str] = "on_demand",
    min_nodes: int = 1,
    max_nodes: int = 8,
    instance_types: Sequence[str] | None = None,
    cloud: str | None = None,
    keep_global_batch: bool = False,
    max_cost_usd: float | None = None,
    batch_per_gpu: int | Sequence[int] = (),
    settings: Settings | None = None,
    prices: OwnPrices | None = None,
    startup_s: float = STARTUP_S,
    interruptions: Mapping[str, float] | None = None,
    catalog: Catalog | None = None,
    predictor: Predicts | None = None,
    others: Sequence[Workload] = (),
    learned: Learned | None = None,
    memory: MemoryModel | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[Plan]:
    """Plans on min_nodes to max_nodes machines: those that meet the budget by expected cost, then those rejected.

    `samples` is the work; a plan meets `budget_s` (and `max_cost_usd`) if the upper end of its 80 % interval does.
    `region` defaults to the cloud's reference region; without `cloud` it implies it. The cloud `any` means all of them.
    `pricing` is on_demand, spot or both. `interruptions` are those of one machine in an hour, by `spot`, `on_demand`
    and types of machines; others are assumed (`ddlprof.recommender.plans.interruptions`).
    Retired types are ranked only where `instance_types` names them or `prices` has one of theirs. The batch per GPU is
    the measured one, or those given; `keep_global_batch` keeps the samples of an update, by accumulation where it must.
    `settings` replaces measured settings (precision, strategy, ...); `prices` are yours in place of list prices.
    `catalog` replaces the embedded one with the user's overlay, `predictor` that made of `workload`, `others` and
    `learned`. If no plan meets the budget, the fastest comes first, rejected as `over budget`. `advance` is told how
    many types of how many are done.
    Raises PredictionError or `ddlprof.instance_catalog.CatalogError`: one line that says what to do.
    """
    limits = Limits(samples, budget_s, min_nodes, max_nodes, max_cost_usd, startup_s, interruptions or {})
    pricings = check_question(limits, pricing)
    catalog = with_own_prices(catalog or instance_catalog.load(), prices)
    batches = (batch_per_gpu,) if isinstance(batch_per_gpu, int) else tuple(batch_per_gpu)
    job = describe_job(workload, batches, keep_global_batch, settings)
    predictor = predictor or Predictor(workload, catalog=catalog, others=others, learned=learned)
    evaluator = _Evaluator(job, predictor, MemoryFit(workload, job, catalog, memory), workload, samples)
    chosen = choose_machines(job, catalog, instance_types, choose_instances(catalog, instance_types, region, cloud))
    _require_few(sum(not problem for *_, problem in chosen), limits, len(job.batches_per_gpu), len(pricings))
    plans: list[Plan] = []
    for done, (instance, where, problem) in enumerate(chosen):
        advance(done, len(chosen))
        offers = {p: catalog.price(instance.instance_type, where, p, instance.cloud) for p in pricings}
        plans += _plans_on(instance, where, problem, offers, evaluator, limits)
    evaluator.require_memory(plans)
    return sorted((with_energy(plan, catalog) for plan in plans), key=order)


def _plans_on(
    instance: InstanceType, where: str, problem: str | None, offers: Mapping[str, Price | None], evaluator: _Evaluator,
    limits: Limits,
) -> Iterator[Plan]:  # fmt: skip
    """The plans on one type, by the prices that it has there. `problem`: why it cannot be used at all."""
    for name, price in offers.items():
        reason = problem or ("" if price else f"no price: {name} in {where}")
        if reason:
            yield make_plan(evaluator.rejected(instance, where, reason), name, price, limits)
    if priced := [price for price in offers.values() if price and not problem]:
        for candidate in evaluator.candidates(instance, where, limits.nodes):
            yield from (make_plan(candidate, price.pricing, price, limits) for price in priced)


def _require_few(types: int, limits: Limits, batches: int, pricings: int) -> None:
    """Raises PredictionError for too many candidates, as all of them are kept and compared."""
    candidates = types * len(limits.nodes) * batches * pricings
    if candidates > MAX_CANDIDATES:
        on = "up to " if limits.min_nodes < limits.max_nodes else ""
        raise PredictionError(
            f"{candidates:,} candidates ({types:,} instance types on {on}{limits.max_nodes:,} nodes, with all batches"
            f" and prices) are too many, at most {MAX_CANDIDATES:,} are ranked: name the types or take fewer nodes"
        )


class _Evaluator:
    """Evaluates one job on the machines of the catalogue, without prices."""

    def __init__(
        self, job: TrainingSetup, predictor: Predicts, fitting: MemoryFit, workload: Workload, samples: float
    ) -> None:
        self._job = job
        self._facts = workload.job
        self._gradient_bytes = workload.gradient_bytes
        self._samples = samples
        self._asked = {name: value for name, value in job.asked.given.items() if name != "grad_accum"}
        self._predictor = predictor
        self._fitting = fitting
        self._too_large: list[tuple[InstanceType, int, int]] = []

    def require_memory(self, plans: Sequence[Plan]) -> None:
        """Raises PredictionError if the job fits into the memory of no machine that it was tried on."""
        tried = [plan for plan in plans if plan.memory_gib_needed is not None or plan.times is not None]
        if tried and all(plan.rejection == TOO_LARGE for plan in tried):
            raise self._fitting.nowhere(self._too_large)

    def rejected(self, instance: InstanceType, region: str, reason: str) -> Candidate:
        """The single candidate for a type that is rejected whatever the number of nodes."""
        sizing = Sizing(1, instance.gpus, self._job.batches_per_gpu[0], self._job.grad_accum)
        return Candidate(instance, region, sizing, reason=reason)

    def candidates(self, instance: InstanceType, region: str, numbers: range) -> Iterator[Candidate]:
        """The candidates of a type: each of these numbers of nodes with every batch."""
        for nodes in numbers:
            # With the global batch kept, several batches can lead to the same sizing.
            sizings = dict.fromkeys(self._size_up(instance, nodes, batch) for batch in self._job.batches_per_gpu)
            for sizing in sizings:
                if sizing:
                    yield self._evaluated(instance, region, sizing)
                else:
                    world_size = nodes * instance.gpus
                    problem = f"global batch not kept: {world_size} GPUs cannot share {self._job.global_batch} samples"
                    yield Candidate(instance, region, Sizing(nodes, instance.gpus, 0, 0), reason=problem)

    def _size_up(self, instance: InstanceType, nodes: int, batch: int) -> Sizing | None:
        world_size = nodes * instance.gpus

        def may_fit(batch: int) -> bool:
            needed = self._fitting.needed(batch, world_size, self._job.grad_accum)
            found = self._fitting.verdict(instance, needed)
            return found is None or found.is_likely

        return size_up(self._job, nodes, instance.gpus, batch, may_fit)

    def _evaluated(self, instance: InstanceType, region: str, sizing: Sizing) -> Candidate:
        sizes = (sizing.batch_per_gpu, sizing.gpus, sizing.grad_accum)
        needed = self._fitting.needed(*sizes)
        needed_gib = needed.gib if needed else None
        found = self._fitting.verdict(instance, needed)
        if found and found.word == DOES_NOT_FIT:
            self._too_large.append((instance, sizing.gpus, sizing.grad_accum))
            problem = self._fitting.problem(instance, found, *sizes)
            return Candidate(instance, region, sizing, needed_gib, found, reason=problem)
        target = Target(
            instance_type=instance.instance_type,
            placement=sizing.placement,
            batch_per_gpu=sizing.batch_per_gpu,
            grad_accum=sizing.grad_accum,
            **self._asked,
        )
        try:
            estimate = self._predictor.predict(target)
        except PredictionError as error:
            return Candidate(instance, region, sizing, needed_gib, found, reason=f"not predictable: {error}")
        overheads = overheads_of(self._facts, estimate, sizing, self._samples)
        basis = [*estimate.basis, *overheads.basis]
        cures: tuple[str, ...] = ()
        if found is None:
            basis.append("memory: not known, assumed to fit")
        elif found.word == PERHAPS:
            basis.append(self._fitting.perhaps(found, *sizes))
            cures = self._fitting.cures(found, *sizes)
        if instance.offered is False:
            basis.append(f"machine: {instance.instance_type} is retired")
        writers = sizing.nodes if self._job.strategy in SHARDED else 1
        checkpoint = checkpoint_of(self._facts, self._gradient_bytes, writers)
        return Candidate(
            instance, region, sizing, needed_gib, found, estimate, basis=tuple(basis), overheads=overheads,
            checkpoint=checkpoint, memory_cures=cures,
        )  # fmt: skip


def front_of(plans: Sequence[Plan]) -> list[Plan]:
    """The accepted plans of which no other is both faster and cheaper, the fastest first."""
    accepted = [plan for plan in plans if not plan.reason]
    front = pareto_front([(plan.time_s or 0.0, plan.cost_usd or 0.0) for plan in accepted])
    return [accepted[index] for index in front]


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the Pareto-optimal points, where both coordinates are to be small, in order of the first coordinate.

    Of equal points only the first is on the front.
    """
    front: list[int] = []
    lowest = float("inf")
    for index in sorted(range(len(points)), key=lambda i: (*points[i], i)):
        if points[index][1] < lowest:
            front.append(index)
            lowest = points[index][1]
    return front
