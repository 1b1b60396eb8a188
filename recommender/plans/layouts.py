"""Plans for a transformer that is divided over many GPUs: the best layout on each machine type and number of them.

Plans are made and ranked as those of `ranking`; the layouts are those of `ddlprof.recommender.search`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ddlprof import instance_catalog
from ddlprof.instance_catalog import Catalog, InstanceType, Price
from ddlprof.instance_catalog.own_prices import OwnPrices, with_own_prices
from ddlprof.recommender.compute.memory_fit import MemoryVerdict, NeededMemory, usable_gib_of
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.layout import Layout, require_layouts
from ddlprof.recommender.layouts.data_parallel import usual_precision
from ddlprof.recommender.learned import Learned
from ddlprof.recommender.plans.candidates import Sizing, choose_instances, describe_job
from ddlprof.recommender.plans.eligible import check_question, choose_machines, order
from ddlprof.recommender.plans.memory import TOO_LARGE
from ddlprof.recommender.plans.overheads import checkpoint_of
from ddlprof.recommender.plans.plan import STARTUP_S, Candidate, Limits, Plan, make_plan, with_energy
from ddlprof.recommender.predictor import Predictor, Predicts
from ddlprof.recommender.search.memory import memory_of
from ddlprof.recommender.search.search import MEMORY, LayoutSearch, MemoryOfLayout, SearchResult, Tried
from ddlprof.recommender.settings import Settings
from ddlprof.recommender.target import machine_from_type
from ddlprof.recommender.workload import Workload

GPUS = (64, 128, 256, 512, 1024, 2048, 4096)
"""The numbers of GPUs that are tried."""
PRECISION = "bf16"
"""The precision where none is asked for, and the job was counted in none."""
MOST_NODES = 10_000

MACHINE_RULES = {
    "no NVLink": "Machines whose GPUs have NVLink among them, unless types are named.",
    "smaller machine": "Of a cloud's machines with the same GPU, the one with most of them, unless types are named.",
}
"""The rules by which machines are left out, each by its name."""


class TriedOn(NamedTuple):
    """A layout tried on a number of machines."""

    instance: InstanceType
    region: str
    nodes: int
    usd_per_hour: float | None
    """The price of all machines, by the first way to pay; None: not known."""
    tried: Tried

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.nodes * self.instance.gpus


@dataclass(frozen=True)
class LayoutPlans:
    """The ranked plans, each with the best layout on its machines, and all layouts that were tried."""

    plans: list[Plan]
    tried: list[TriedOn]


def recommend_layouts(
    workload: Workload,
    *,
    samples: float,
    budget_s: float,
    global_batch: int,
    gpus: Sequence[int] = GPUS,
    nodes: int | None = None,
    max_nodes: int = MOST_NODES,
    region: str | None = None,
    pricing: str | Sequence[str] = "on_demand",
    instance_types: Sequence[str] | None = None,
    cloud: str | None = None,
    max_cost_usd: float | None = None,
    settings: Settings | None = None,
    prices: OwnPrices | None = None,
    startup_s: float = STARTUP_S,
    interruptions: Mapping[str, float] | None = None,
    catalog: Catalog | None = None,
    predictor: Predicts | None = None,
    others: Sequence[Workload] = (),
    learned: Learned | None = None,
    memory: MemoryOfLayout | None = None,
    allows: Callable[[Layout], bool] | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> LayoutPlans:
    """Plans with the best layout of a transformer on each machine type and each number of GPUs.

    `global_batch`: sequences of an update; `samples`: those of the whole job; `nodes`, where it is given, is in place
    of `gpus`; `allows`: see `LayoutSearch`; the rest: see `recommend`. Raises PredictionError or CatalogError.
    """
    model = require_layouts(workload.transformer, workload.name)
    if not gpus or min(gpus) < 1 or global_batch < 1:
        raise PredictionError("layouts need numbers of GPUs and a global batch above 0")
    limits = Limits(samples, budget_s, nodes or 1, nodes or max_nodes, max_cost_usd, startup_s, interruptions or {})
    pricings = check_question(limits, pricing, MOST_NODES)
    catalog = with_own_prices(catalog or instance_catalog.load(), prices)
    settings = _with_precision(settings or Settings(), workload)
    job = describe_job(workload, (1,), False, settings)
    predictor = predictor or Predictor(workload, catalog=catalog, others=others, learned=learned)
    memory = memory or memory_of(workload, job.precision)
    search = LayoutSearch(model, global_batch, predictor, memory, job.precision, settings.optimizer, allows)
    chosen = choose_machines(job, catalog, instance_types, choose_instances(catalog, instance_types, region, cloud))
    chosen = list(_with_nvlink(chosen, catalog, pricings)) if instance_types is None else chosen
    plans, tried = list[Plan](), list[TriedOn]()
    asked: list[_Asked] = []
    for instance, where, problem in chosen:
        offers = [catalog.price(instance.instance_type, where, name, instance.cloud) for name in pricings]
        priced = [price for price in offers if price]
        reason = problem or ("" if priced else f"no price: {', '.join(pricings)} in {where}")
        if reason:
            plans.append(make_plan(_rejected(instance, where, 1, reason), pricings[0], None, limits))
            continue
        numbers = [nodes] if nodes else _numbers(instance, gpus, max_nodes)
        asked += [_Asked(instance, where, number, priced) for number in numbers]
    for one, (best, tried_there) in zip(asked, _searched(asked, search, catalog, workload, advance), strict=True):
        plans += [make_plan(best, p.pricing, p, limits) for p in one.prices]
        tried += tried_there
    return LayoutPlans(sorted((with_energy(plan, catalog) for plan in plans), key=order), tried)


class _Asked(NamedTuple):
    """A number of machines whose layouts are searched, and the prices of one."""

    instance: InstanceType
    region: str
    nodes: int
    prices: list[Price]


def _searched(
    asked: Sequence[_Asked], search: LayoutSearch, catalog: Catalog, workload: Workload,
    advance: Callable[[int, int], None],
) -> Iterator[tuple[Candidate, list[TriedOn]]]:  # fmt: skip
    """The best layout on each, and all that were tried there."""
    for done, (instance, region, nodes, prices) in enumerate(asked, 1):
        usable_gib = usable_gib_of(catalog.gpu(instance.gpu_model), instance.gpu_memory_gib) or 0.0
        found = search.on(machine_from_type(instance, catalog), (instance.gpus,) * nodes, usable_gib)
        usd_per_hour = prices[0].usd_per_hour * nodes
        tried = [TriedOn(instance, region, nodes, usd_per_hour, each) for each in found.tried]
        yield _candidate(instance, region, nodes, found, workload, usable_gib), tried
        advance(done, len(asked))


def _with_precision(settings: Settings, workload: Workload) -> Settings:
    return replace(settings, precision=settings.precision or usual_precision(workload) or PRECISION)


def _numbers(instance: InstanceType, gpus: Sequence[int], most: int) -> list[int]:
    """The numbers of machines that have one of these numbers of GPUs."""
    whole = {number // instance.gpus for number in gpus if number % instance.gpus == 0}
    return sorted(number for number in whole if 1 <= number <= most)


def _with_nvlink(
    chosen: Sequence[tuple[InstanceType, str, str | None]], catalog: Catalog, pricings: Sequence[str]
) -> Iterator[tuple[InstanceType, str, str | None]]:
    """The machines, with the reason of those that `MACHINE_RULES` leave out."""
    largest_of: dict[tuple[str, str], InstanceType] = {}
    for instance, where, problem in chosen:
        priced = any(catalog.price(instance.instance_type, where, name, instance.cloud) for name in pricings)
        if priced and not problem and _has_nvlink(instance, catalog):
            key = instance.cloud, instance.gpu_model
            largest_of[key] = max(instance, largest_of.get(key, instance), key=lambda each: each.gpus)
    for instance, where, problem in chosen:
        largest = largest_of.get((instance.cloud, instance.gpu_model))
        if problem:
            yield instance, where, problem
        elif not _has_nvlink(instance, catalog):
            yield instance, where, f"no NVLink: {instance.gpus} x {instance.gpu_model}; name the type to have it tried"
        elif largest and instance.gpus < largest.gpus:
            yield instance, where, f"smaller machine: {largest.instance_type} has {largest.gpus} of these GPUs"
        else:
            yield instance, where, None


def _has_nvlink(instance: InstanceType, catalog: Catalog) -> bool:
    return machine_from_type(instance, catalog).link == "nvlink"


def _candidate(
    instance: InstanceType, region: str, nodes: int, found: SearchResult, workload: Workload, usable_gib: float
) -> Candidate:
    best = found.best
    if best is None:
        return _rejected(instance, region, nodes, _why_none(instance, found, usable_gib))
    sizing = Sizing(nodes, instance.gpus, best.micro_batch, best.micro_batches, best.layout.model_ranks)
    basis = best.estimate.basis if best.estimate else ()
    saving = checkpoint_of(workload.job, workload.gradient_bytes, nodes)
    # The search takes layouts alone that fit at the upper end of their need.
    gib = best.memory_gib
    memory = None if gib is None else MemoryVerdict(NeededMemory(gib, gib, gib), max(usable_gib, gib))
    return Candidate(
        instance, region, sizing, gib, memory, best.estimate, basis=basis, layout=best.layout,
        checkpoint=saving,
    )  # fmt: skip


def _rejected(instance: InstanceType, region: str, nodes: int, reason: str) -> Candidate:
    return Candidate(instance, region, Sizing(nodes, instance.gpus, 0, 0), reason=reason)


def _why_none(instance: InstanceType, found: SearchResult, usable_gib: float) -> str:
    """The reason why no layout can be used."""
    too_large = [each.memory_gib for each in found.tried if each.reason == MEMORY and each.memory_gib is not None]
    if too_large:
        least = f"of {len(too_large)} layouts the smallest needs {min(too_large):.0f} GiB of {usable_gib:.0f}"
        return f"{TOO_LARGE}: {least} on {instance.gpu_model}"
    reasons = Counter(each.reason.partition(":")[0] for each in found.tried if each.reason)
    most = "; ".join(f"{number} by {name!r}" for name, number in reasons.most_common(3))
    return f"no layout: all {len(found.tried)} are left out, {most}"
