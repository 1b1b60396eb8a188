"""What a user pays instead of list prices: contracts, capacity blocks, machines already paid for, discounts.

Nothing is stored; the prices apply to one query only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ddlprof.instance_catalog import table
from ddlprof.instance_catalog.catalog import Catalog
from ddlprof.instance_catalog.clouds import ANY_REGION
from ddlprof.instance_catalog.errors import CatalogError
from ddlprof.instance_catalog.records import OWN_PRICE, Price


@dataclass(frozen=True)
class OwnPrices:
    """A user's own prices. Both fields may be empty."""

    prices: Sequence[Price] = ()
    """Each price replaces the list's in its region, or in all regions if its region is `any`."""
    discounts: Mapping[str, float] = field(default_factory=dict)
    """The share (up to 1) taken off list prices, by cloud or instance type. That of the type counts first."""


@dataclass(frozen=True)
class _Row:
    """A row of a user's file."""

    instance_type: str
    usd_per_hour: float
    cloud: str | None = None
    region: str = ANY_REGION
    pricing: str = "on_demand"
    as_of: str = ""


def read_own_prices(path: Path, catalog: Catalog) -> list[Price]:
    """The prices of a CSV file with `instance_type,usd_per_hour` and, optionally, `cloud,region,pricing,as_of`.

    Raises CatalogError that names the line of an unknown machine, cloud or region, or of an invalid price.
    """

    def price_of(row: _Row) -> Price:
        machine = catalog.instance(row.instance_type, row.cloud)
        if row.region != ANY_REGION and row.region not in catalog.regions(machine.cloud):
            raise CatalogError(f"unknown region {row.region!r} of {machine.cloud}")
        return Price(
            machine.cloud, row.region, machine.instance_type, row.pricing, row.usd_per_hour,
            row.as_of, OWN_PRICE, path.name,
        )  # fmt: skip

    if not os.path.isfile(path):  # Path's raises for a very long name
        raise CatalogError(f"{path}: no such file; write one with the columns instance_type,usd_per_hour")
    rows = table.read(path, _Row, check=price_of, advice="correct the line")
    return [price_of(row) for row in rows]


def with_own_prices(catalog: Catalog, own: OwnPrices | None) -> Catalog:
    """The catalogue with these prices instead of its own. Raises CatalogError for an impossible discount."""
    if own is None or not (own.prices or own.discounts):
        return catalog
    discounts = {_known(catalog, name): _share(name, share) for name, share in own.discounts.items()}
    paid = {(price.cloud, price.instance_type, price.pricing, price.region): price for price in own.prices}

    def counted(price: Price) -> Price:
        here = (price.cloud, price.instance_type, price.pricing, price.region)
        mine = paid.get(here) or paid.get((*here[:3], ANY_REGION))
        if mine is None:
            return _discounted(price, discounts)
        return replace(mine, region=price.region, list_usd_per_hour=price.usd_per_hour)

    listed = [counted(price) for price in catalog.prices]
    there = {(price.cloud, price.instance_type, price.pricing, price.region) for price in catalog.prices}
    more = [price for place, price in paid.items() if place not in there]
    return replace(catalog, prices=(*listed, *more))


def _known(catalog: Catalog, name: str) -> str:
    """The cloud or instance type that a discount names. Raises CatalogError for an unknown one."""
    if name in {machine.cloud for machine in catalog.instances}:
        return name
    return catalog.instance(name).instance_type


def _share(name: str, share: float) -> float:
    if not 0 < share <= 1:
        raise CatalogError(f"discount of {name}: more than 0 % and up to 100 % is expected, not {100 * share:g} %")
    return share


def _discounted(price: Price, discounts: Mapping[str, float]) -> Price:
    share = discounts.get(price.instance_type, discounts.get(price.cloud))
    if share is None:
        return price
    basis = f"{price.basis or 'read_undated'}, less {100 * share:g} %"
    paid = price.usd_per_hour * (1 - share)
    return replace(price, usd_per_hour=paid, basis=basis, list_usd_per_hour=price.usd_per_hour)
