"""`ddlprof instances`: the catalogue as a table for people, as JSON and as CSV, one row for each machine and region.

The catalogue selects the machines; `show` has everything about a single one. What a refresh changed is here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any

from ddlprof.base.text import plain, text_of
from ddlprof.base.units import NOT_KNOWN
from ddlprof.instance_catalog import Catalog, InstanceType, Price
from ddlprof.instance_catalog.clouds import ANY_REGION, cloud_named
from ddlprof.report.json_csv import csv_text, json_text
from ddlprof.report.text import aligned

COLUMNS = (
    "cloud", "region", "instance_type", "family", "gpu_model", "gpus", "gpu_fraction", "gpu_memory_gib", "vcpus",
    "memory_gib", "cpu_arch", "interconnect", "interconnect_gb_s", "nvswitch", "network_gbps", "network_burst_gbps",
    "flow_gbps", "flow_placement_group_gbps", "efa", "efa_interfaces", "local_storage_gib", "ebs_gbps",
    "ebs_burst_gbps", "offered", "on_demand_usd_per_hour", "on_demand_as_of", "on_demand_basis", "spot_usd_per_hour",
    "spot_as_of", "spot_basis", "price_as_of", "spec_as_of", "source",
)  # fmt: skip
"""The columns of the CSV file and keys of the JSON objects."""


@dataclass(frozen=True)
class InstanceRow:
    """A machine and what it costs in `region`; None where the price there is not known."""

    machine: InstanceType
    region: str
    on_demand: Price | None
    spot: Price | None


def rows_of(catalog: Catalog, machines: Iterable[InstanceType], region: str | None = None) -> list[InstanceRow]:
    """The machines by cloud, family and size, with the prices of `region`, or of each cloud's reference region."""
    return [_row(catalog, machine, region) for machine in sorted(machines, key=_by_size)]


def _row(catalog: Catalog, machine: InstanceType, region: str | None) -> InstanceRow:
    prices = {(price.region, price.pricing): price for price in catalog.prices_of(machine)}
    everywhere = any(priced == ANY_REGION for priced, _ in prices)
    where = ANY_REGION if everywhere else region or cloud_named(machine.cloud).reference_region
    return InstanceRow(machine, where, prices.get((where, "on_demand")), prices.get((where, "spot")))


def _by_size(machine: InstanceType) -> tuple[Any, ...]:
    size = (machine.gpus or machine.gpu_fraction, machine.vcpus or 0, machine.memory_gib or 0)
    return machine.cloud, machine.family, *size, machine.instance_type


def record(row: InstanceRow) -> dict[str, Any]:
    """The row by the names of `COLUMNS`; None for what is not known.

    `price_as_of` is the older date of the two prices, and None where one of them has no date.
    """
    known = [price for price in (row.on_demand, row.spot) if price]
    dates = [price.as_of for price in known]
    values: dict[str, Any] = {
        "region": row.region,
        "price_as_of": min(dates) if dates and all(dates) else None,
        "spec_as_of": row.machine.spec_as_of or None,
    }
    for name, price in (("on_demand", row.on_demand), ("spot", row.spot)):
        values[f"{name}_usd_per_hour"] = price.usd_per_hour if price else None
        values[f"{name}_as_of"] = (price.as_of or None) if price else None
        values[f"{name}_basis"] = (price.basis or None) if price else None
    sources = ";".join([row.machine.source, *(price.source for price in known)])
    values["source"] = ";".join(dict.fromkeys(filter(None, sources.split(";")))) or None
    return {name: values[name] if name in values else getattr(row.machine, name) for name in COLUMNS}


def as_json(rows: Sequence[InstanceRow]) -> str:
    """A list of objects, ending with a line end."""
    return json_text([record(row) for row in rows])


def as_csv(rows: Sequence[InstanceRow]) -> str:
    """CSV with one header row; an empty field means not known."""
    return csv_text(COLUMNS, (record(row).values() for row in rows))


@dataclass(frozen=True)
class _Column:
    """A column of the table; where not all fit, those with the highest `rank` are left out first."""

    header: str
    rank: int
    cell: Callable[[InstanceRow], str]
    left: bool = False


def number(value: float | None) -> str:
    """`4`, `1.25`, or `-` where not known; two decimals at most."""
    return NOT_KNOWN if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


def gpus(machine: InstanceType) -> str:
    """`8 x A100-SXM4-40GB`, `1/8 x L4`."""
    share = str(machine.gpus) if machine.gpus else str(Fraction(machine.gpu_fraction).limit_denominator(32))
    return f"{share} x {machine.gpu_model}"


def dollars(price: Price | None) -> str:
    """`0.526`, `~0.526` where it is assumed, or `-` where not known."""
    return NOT_KNOWN if price is None else f"{'~' if price.assumed else ''}{price.usd_per_hour:.3f}"


def _yes_no(value: bool | None) -> str:
    return NOT_KNOWN if value is None else "yes" if value else "no"


_TABLE = (
    _Column("instance type", 0, lambda r: r.machine.instance_type + (" *" if r.machine.offered is False else ""), True),
    _Column("GPUs", 0, lambda r: gpus(r.machine), True),
    _Column("GiB each", 1, lambda r: number(r.machine.gpu_memory_gib)),
    _Column("between GPUs", 7, lambda r: r.machine.interconnect or NOT_KNOWN, True),
    _Column("GB/s", 8, lambda r: number(r.machine.interconnect_gb_s)),
    _Column("vCPUs", 4, lambda r: number(r.machine.vcpus)),
    _Column("RAM GiB", 5, lambda r: number(r.machine.memory_gib)),
    _Column("net Gbit/s", 3, lambda r: number(r.machine.network_gbps)),
    _Column("burst", 9, lambda r: number(r.machine.network_burst_gbps)),
    _Column("EFA", 10, lambda r: _yes_no(r.machine.efa), True),
    _Column("disk GiB", 11, lambda r: number(r.machine.local_storage_gib)),
    _Column("USD/h", 0, lambda r: dollars(r.on_demand)),
    _Column("spot", 0, lambda r: dollars(r.spot)),
)


def as_table(rows: Sequence[InstanceRow], width: int) -> str:
    """A table for each cloud, with as many columns as fit into `width` characters, ending with a line end."""
    clouds = [list(group) for _, group in groupby(rows, key=lambda row: row.machine.cloud)]
    lines = [line for of_cloud in clouds for line in [*_cloud_table(of_cloud, width), ""]]
    return text_of([*lines, *_notes(rows)])


def _cloud_table(rows: list[InstanceRow], width: int) -> list[str]:
    columns = [(column, [column.header, *(plain(column.cell(row)) for row in rows)]) for column in _TABLE]
    columns = [(column, cells) for column, cells in columns if column.rank == 0 or set(cells[1:]) != {NOT_KNOWN}]
    widths = {column.header: max(map(len, cells)) for column, cells in columns}
    while sum(widths[c.header] + 2 for c, _ in columns) - 2 > width and any(c.rank for c, _ in columns):
        columns.remove(max(columns, key=lambda column: column[0].rank))
    right = {number for number, (column, _) in enumerate(columns) if not column.left}
    return [_heading(rows), *aligned(list(zip(*(cells for _, cells in columns), strict=True)), right)]


def _heading(rows: list[InstanceRow]) -> str:
    """`aws us-east-1: on demand as of 2026-07-20, spot as of 2026-08-08`."""
    of = {"on demand": [r.on_demand for r in rows if r.on_demand], "spot": [r.spot for r in rows if r.spot]}
    known = [f"{name} {dates([price.as_of for price in prices])}" for name, prices in of.items() if prices]
    where = "" if rows[0].region == ANY_REGION else f" {rows[0].region}"
    return f"{rows[0].machine.cloud}{where}: prices {', '.join(known) or 'not known'}"


def dates(as_of: Sequence[str]) -> str:
    """`as of 2026-07-20`, `as of 2017-11-12 to 2026-07-20, some undated`."""
    dated = sorted(filter(None, as_of))
    if not dated:
        return "undated"
    span = dated[0] if dated[0] == dated[-1] else f"{dated[0]} to {dated[-1]}"
    return f"as of {span}" + (", some undated" if len(dated) < len(as_of) else "")


def _notes(rows: Sequence[InstanceRow]) -> list[str]:
    prices = [price for row in rows for price in (row.on_demand, row.spot)]
    notes = ["USD an hour: Linux, shared tenancy, no commitment."]
    notes += ["-  not known."] if None in prices else []
    notes += ["~  assumed, read nowhere."] if any(price and price.assumed for price in prices) else []
    notes += ["*  retired."] if any(row.machine.offered is False for row in rows) else []
    return ["  ".join(notes), "Sources and other regions: ddlprof instances show TYPE"]
