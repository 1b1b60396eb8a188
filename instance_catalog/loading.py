"""Makes a `Catalog` of files: the embedded snapshot, the user's overlay, and what follows from both.

Limits for single flows follow from the cloud's rules and the type's bandwidth; a user's measurement replaces both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

from ddlprof.instance_catalog import table
from ddlprof.instance_catalog.catalog import Catalog
from ddlprof.instance_catalog.errors import CatalogError
from ddlprof.instance_catalog.names import resolve
from ddlprof.instance_catalog.overlay import (
    INSTANCES,
    Overlay,
    default_overlay,
    merge_instances,
    merge_prices,
    read_overlay,
)
from ddlprof.instance_catalog.records import (
    Disagreement,
    FlowLimit,
    Gpu,
    GpuLink,
    InstanceType,
    LinkFact,
    LinkPair,
    Price,
    Source,
)

Record = TypeVar("Record")
DATA = Path(__file__).parent / "data"
MEASURED_FIELDS = ("network_gbps", "flow_gbps", "flow_placement_group_gbps")
"""Fields of an instance type that are replaced by the user's own measurements."""


def load(overlay: Path | Literal["default"] | None = "default") -> Catalog:
    """The embedded snapshot merged with an overlay directory: the user's own, another one, or none (None).

    Raises CatalogError that names file and line if an overlay is damaged.
    """
    directory = default_overlay() if overlay == "default" else overlay
    own = Overlay() if directory is None else read_overlay(directory)
    limits = _shipped("flow_limits.csv", FlowLimit)
    pairs = _pairs(_shipped("gpu_links.csv", GpuLink))
    newest = _newest(own.links)
    gpus = _shipped("gpus.csv", Gpu)
    instances = merge_instances(_shipped("instances.csv", InstanceType), _with_known_gpus(own.instances, gpus))
    return Catalog(
        instances=tuple(_complete(row, limits, pairs, newest) for row in instances),
        gpus=tuple(gpus),
        prices=tuple(merge_prices(_shipped("prices.csv", Price), own.prices)),
        links=own.links,
        reached=own.reached,
        flow_limits=tuple(limits),
        sources=tuple(_shipped("sources.csv", Source)),
        disagreements=tuple(_shipped("disagreements.csv", Disagreement)),
    )


@cache
def _shipped(file: str, record: type[Record]) -> tuple[Record, ...]:
    """A table of the snapshot, which is the same whatever overlay is merged with it."""
    return tuple(table.read(DATA / file, record))


def _with_known_gpus(rows: Iterable[InstanceType], gpus: Sequence[Gpu]) -> list[InstanceType]:
    """The same types with GPU names from the table. Raises CatalogError for a GPU that the table does not have."""
    known = {gpu.gpu_model for gpu in gpus}
    return [row if row.gpu_model in known else replace(row, gpu_model=_gpu_of(row, gpus).gpu_model) for row in rows]


def _gpu_of(row: InstanceType, gpus: Sequence[Gpu]) -> Gpu:
    try:
        return resolve(row.gpu_model, gpus, row.gpu_memory_gib)
    except CatalogError as error:
        raise CatalogError(f"{INSTANCES} of your own catalogue: {row.instance_type}: {error}") from None


def _complete(
    row: InstanceType,
    limits: Sequence[FlowLimit],
    pairs: dict[tuple[str, str], tuple[LinkPair, ...]],
    measured: dict[tuple[str, str], LinkFact],
) -> InstanceType:
    row = replace(
        row,
        flow_gbps=_flow(row, limits, "tcp", placement_group=False),
        flow_placement_group_gbps=_flow(row, limits, "tcp", placement_group=True),
        flow_ena_express_gbps=_flow(row, limits, "ena_express", placement_group=False) if row.ena_express else None,
        link_pairs=pairs.get((row.cloud, row.instance_type), ()),
    )
    own = [measured[row.instance_type, name] for name in MEASURED_FIELDS if (row.instance_type, name) in measured]
    if not own:
        return row
    sources = dict.fromkeys([*(f"measured: {fact.source}" for fact in own), *row.source.split(";")])
    facts = {fact.what: fact.value for fact in own}
    return replace(row, **facts, source=";".join(sources))  # type: ignore[arg-type]  # the names are MEASURED_FIELDS


def _flow(row: InstanceType, limits: Sequence[FlowLimit], transport: str, placement_group: bool) -> float | None:
    """The cloud's limit for one flow, or the machine's whole bandwidth (burst included) if that is less, in Gbit/s."""
    wanted = (row.cloud, transport, placement_group)
    for limit in limits:
        if (limit.cloud, limit.transport, limit.placement_group) == wanted and limit.gbps is not None:
            return min(limit.gbps, row.network_burst_gbps or row.network_gbps or limit.gbps)
    return None


def _pairs(rows: Iterable[GpuLink]) -> dict[tuple[str, str], tuple[LinkPair, ...]]:
    pairs: dict[tuple[str, str], tuple[LinkPair, ...]] = {}
    for row in rows:
        key = (row.cloud, row.instance_type)
        pairs[key] = (*pairs.get(key, ()), LinkPair(row.gpu_a, row.gpu_b, row.links))
    return pairs


def _newest(links: Iterable[LinkFact]) -> dict[tuple[str, str], LinkFact]:
    return {(fact.machine, fact.what): fact for fact in sorted(links, key=lambda fact: fact.measured_at)}
