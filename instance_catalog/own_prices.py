"""What a user pays instead of the list's prices: contracts, capacity blocks, machines paid for already, discounts.

Nothing here is stored: the prices are those of one question.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from instance_catalog import table
from instance_catalog.catalog import ANY_REGION, Catalog
from instance_catalog.errors import CatalogError
from instance_catalog.records import OWN_PRICE, Price


@dataclass(frozen=True)
class OwnPrices:
    """Prices of one's own. Both may be empty."""

    prices: Sequence[Price] = ()
    """Each replaces those of the list in its region, in all regions where its region is `any`."""
    discounts: Mapping[str, float] = field(default_factory=dict)
    """The share, up to 1, taken off the list's prices, by cloud or by instance type; that of the type counts first."""


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
    """The prices of a CSV file with `instance_type,usd_per_hour` and, if wanted, `cloud,region,pricing,as_of`.

    Raises CatalogError naming the line of an unknown machine, cloud or region, or of a price that is none.
    """

    def price_of(row: _Row) -> Price:
        machine = catalog.instance(row.instance_type, row.cloud)
        if row.region != ANY_REGION and row.region not in catalog.regions(machine.cloud):
            raise CatalogError(f"unknown region {row.region!r} of {machine.cloud}")
        return Price(
            machine.cloud, row.region, machine.instance_type, row.pricing, row.usd_per_hour,
            row.as_of, OWN_PRICE, path.name,
        )  # fmt: skip

    if not os.path.isfile(path):  # not Path's: it raises where a name is too long
        raise CatalogError(f"{path}: no such file; write one with the columns instance_type,usd_per_hour")
    rows = table.read(path, _Row, check=price_of, advice="correct the line")
    return [price_of(row) for row in rows]


def with_own_prices(catalog: Catalog, own: OwnPrices | None) -> Catalog:
    """The catalogue with these prices in place of its own. Raises CatalogError for an impossible discount."""
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
    """The cloud or instance type of a discount. Raises CatalogError for one that nobody knows."""
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
