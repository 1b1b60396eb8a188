"""Queries over the facts, as pure functions of records that were already read. Nothing here guesses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ddlprof.instance_catalog.clouds import ANY_REGION, cloud_named
from ddlprof.instance_catalog.errors import CatalogError
from ddlprof.instance_catalog.names import matching, resolve, unknown
from ddlprof.instance_catalog.records import (
    PRICINGS,
    Disagreement,
    FlowLimit,
    Gpu,
    InstanceType,
    LinkFact,
    Price,
    Reached,
    Source,
)

ANY_CLOUD = "any"
"""What users name for all clouds together."""


@dataclass(frozen=True)
class Catalog:
    """All known facts: the embedded snapshot merged with the user's overlay."""

    instances: tuple[InstanceType, ...]
    gpus: tuple[Gpu, ...]
    prices: tuple[Price, ...]
    links: tuple[LinkFact, ...] = ()
    flow_limits: tuple[FlowLimit, ...] = ()
    sources: tuple[Source, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    reached: tuple[Reached, ...] = ()
    """What users' probes measured."""

    def instance(self, name: str, cloud: str | None = None) -> InstanceType:
        """The type of that name, in upper or lower case. Raises CatalogError naming the closest."""
        if cloud is not None:
            self._check_cloud(cloud)
        alike = self._by_name.get(name.strip().lower(), ())
        found = [row for row in alike if cloud in (None, row.cloud)]
        if not found:
            if alike:
                raise CatalogError(f"{alike[0].instance_type} is a type of {alike[0].cloud}, not of {cloud}")
            names = [row.instance_type for row in self.instances if cloud in (None, row.cloud)]
            raise CatalogError(unknown("instance type", name, names))
        return found[0]

    def gpu(self, name: str, memory_gib: float | None = None) -> Gpu:
        """The GPU of that name, in any spelling. What the name leaves open is the default of `gpus.csv`.

        `memory_gib`: distinguishes variants for which an API uses one name. Raises CatalogError naming the closest.
        """
        return resolve(name, self.gpus, memory_gib)

    def price(
        self, instance_type: str, region: str | None = None, pricing: str = "on_demand", cloud: str | None = None
    ) -> Price | None:
        """The price of a type; None if unknown. `basis` tells how well it is known, `as_of` how old it is.

        Without a region it is that of the cloud's reference region, else the lowest that was read, else the lowest that
        was assumed. Raises CatalogError for an unknown type, region or pricing.
        """
        if pricing not in PRICINGS:
            raise CatalogError(f"unknown pricing {pricing!r}; known: {', '.join(PRICINGS)}")
        machine = self.instance(instance_type, cloud)
        if region is not None:
            self._check_region(region)
        offers = {row.region: row for row in self.prices_of(machine) if row.pricing == pricing}
        wanted = cloud_named(machine.cloud).reference_region if region is None else region
        found = offers.get(wanted) or offers.get(ANY_REGION)
        if found is None and region is None and offers:
            return min(offers.values(), key=lambda row: (row.assumed, row.usd_per_hour, row.region))
        return found

    def prices_of(self, machine: InstanceType) -> tuple[Price, ...]:
        """All prices of a type."""
        return tuple(self._prices.get((machine.cloud, machine.instance_type), ()))

    def regions(self, cloud: str | None = None) -> tuple[str, ...]:
        """All regions with any known fact, sorted."""
        priced = {row.region for row in self.prices if cloud in (None, row.cloud)} - {ANY_REGION}
        offered = {region for row in self.instances if cloud in (None, row.cloud) for region in row.offered_regions}
        return tuple(sorted(priced | offered))

    def available_in(self, machine: InstanceType, region: str) -> bool:
        """Whether a type was on offer in a region, or has a price there."""
        priced = {row.region for row in self.prices_of(machine)}
        return region in machine.offered_regions or region in priced or ANY_REGION in priced

    def select(
        self,
        gpu: str | None = None,
        cloud: str | None = None,
        region: str | None = None,
        min_gpu_memory_gib: float | None = None,
        min_gpus: int | None = None,
        instance_types: Iterable[str] | None = None,
        include_retired: bool = True,
        include_fractional: bool = True,
    ) -> list[InstanceType]:
        """Types that meet all conditions, in the order of the table.

        `gpu` matches every variant that the name can mean (A100: 40 and 80 GB, SXM and PCIe), the cloud
        `any` all clouds. An unknown fact does not
        meet a minimum. Raises CatalogError for an unknown GPU, cloud, region or type.
        """
        if cloud == ANY_CLOUD:
            cloud = None
        if cloud is not None:
            self._check_cloud(cloud)
        if region is not None:
            self._check_region(region)
        models = None if gpu is None else self._models(gpu)
        names = None if instance_types is None else {self.instance(name).instance_type for name in instance_types}
        return [
            row
            for row in self.instances
            if cloud in (None, row.cloud)
            and (models is None or row.gpu_model in models)
            and (names is None or row.instance_type in names)
            and (region is None or self.available_in(row, region))
            and (min_gpu_memory_gib is None or (row.gpu_memory_gib or 0) >= min_gpu_memory_gib)
            and (min_gpus is None or row.gpus >= min_gpus)
            and (include_retired or row.offered is not False)
            and (include_fractional or row.gpu_fraction == 1)
        ]

    def link(self, machine: str, what: str) -> LinkFact | None:
        """The newest measurement of that name on an instance type or host; None if there is none."""
        found = [fact for fact in self.links if (fact.machine, fact.what) == (machine, what)]
        return max(found, key=lambda fact: fact.measured_at, default=None)

    def reached_by(self, gpu_model: str, instance_type: str | None = None) -> Reached | None:
        """The newest probe of a GPU, by its name in the catalogue, on this type of machine or else on any."""
        found = [row for row in self.reached if row.gpu_model == gpu_model]
        return max(found, key=lambda row: (row.instance_type == instance_type, row.measured_at), default=None)

    def disagreements_about(self, machine: InstanceType) -> tuple[Disagreement, ...]:
        """Where sources differ about a type or its GPU."""
        return tuple(d for d in self.disagreements if d.subject in (machine.instance_type, machine.gpu_model))

    def sources_of(self, source: str) -> tuple[Source, ...]:
        """The entries of `sources.csv` that a `source` column names; none if it contains free text."""
        names = source.split(";")
        return tuple(entry for entry in self.sources if entry.source in names)

    @cached_property
    def _by_name(self) -> dict[str, list[InstanceType]]:
        index: dict[str, list[InstanceType]] = {}
        for row in self.instances:
            index.setdefault(row.instance_type.lower(), []).append(row)
        return index

    @cached_property
    def _prices(self) -> dict[tuple[str, str], list[Price]]:
        index: dict[tuple[str, str], list[Price]] = {}
        for row in self.prices:
            index.setdefault((row.cloud, row.instance_type), []).append(row)
        return index

    @cached_property
    def _regions(self) -> frozenset[str]:
        return frozenset({ANY_REGION, *self.regions()})

    def _models(self, gpu: str) -> set[str]:
        return {found.gpu_model for found in matching(gpu, self.gpus) or [self.gpu(gpu)]}

    def clouds(self) -> tuple[str, ...]:
        """The clouds that anything is known about, sorted."""
        return tuple(sorted({row.cloud for row in self.instances}))

    def _check_cloud(self, cloud: str) -> None:
        if cloud not in self.clouds():
            raise CatalogError(f"unknown cloud {cloud!r}; known: {', '.join(self.clouds())}")

    def _check_region(self, region: str) -> None:
        if region not in self._regions:
            known = ", ".join(sorted(self._regions - {ANY_REGION}))
            raise CatalogError(f"nothing is known of region {region!r}; known: {known}")
