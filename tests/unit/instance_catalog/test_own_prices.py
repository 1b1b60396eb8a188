"""Prices of one's own: files, discounts, and what they replace."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.instance_catalog import Catalog, CatalogError, load
from ddlprof.instance_catalog.own_prices import OwnPrices, read_own_prices, with_own_prices
from tests.unit.recommender.made_up import CATALOG


def file_of(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "contract.csv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def usd(catalog: Catalog, name: str, pricing: str = "on_demand") -> float | None:
    price = catalog.price(name, pricing=pricing)
    return price.usd_per_hour if price else None


def test_a_price_replaces_those_of_all_regions_and_may_be_nothing(tmp_path: Path) -> None:
    path = file_of(tmp_path, "instance_type,usd_per_hour", "small.1,0", "other.1,1.5")
    catalog = with_own_prices(CATALOG, OwnPrices(read_own_prices(path, CATALOG)))
    free, east, west = (catalog.price("small.1", region) for region in (None, "us-east-1", "us-west-2"))
    for price in (free, east, west):
        assert price is not None
        assert (price.usd_per_hour, price.basis, price.source, price.own) == (0.0, "own", "contract.csv", True)
    assert usd(catalog, "small.1", "spot") == 0.5
    assert usd(catalog, "other.1") == 1.5
    assert catalog.price("big.1") == CATALOG.price("big.1")


def test_a_discount_is_taken_off_the_list_but_not_off_own_prices(tmp_path: Path) -> None:
    path = file_of(tmp_path, "instance_type,usd_per_hour", "big.1,2")
    own = OwnPrices(read_own_prices(path, CATALOG), {"aws": 0.3, "SMALL.4": 0.5})
    catalog = with_own_prices(CATALOG, own)
    found = {name: catalog.price(name) for name in ("small.1", "small.4", "big.1", "other.1")}
    assert {name: usd(catalog, name) for name in found} == pytest.approx(
        {"small.1": 0.7, "small.4": 2.5, "big.1": 2.0, "other.1": 3.0}
    )
    assert {name: price.basis for name, price in found.items() if price} == {
        "small.1": "read, less 30 %", "small.4": "read, less 50 %", "big.1": "own", "other.1": "read",
    }  # fmt: skip
    assumed = catalog.price("small.1", "us-west-2")
    assert assumed is not None
    assert (assumed.assumed, assumed.discounted) == (True, True)


def test_nothing_of_ones_own_changes_nothing() -> None:
    assert with_own_prices(CATALOG, OwnPrices()) is CATALOG
    assert with_own_prices(CATALOG, None) is CATALOG


@pytest.mark.parametrize(
    ("line", "what"),
    [("p4d.24xlrge,1,,", "unknown instance type 'p4d.24xlrge'; closest: p4d.24xlarge"),
     ("p4d.24xlarge,-1,,", "usd_per_hour: a number of 0 or more is expected, not -1.0"),
     ("p4d.24xlarge,cheap,,", "usd_per_hour: a number of 0 or more is expected, not 'cheap'"),
     ("p4d.24xlarge,,,", "a cell that must be filled is empty"),
     ("p4d.24xlarge,1,moon-1,", "unknown region 'moon-1' of aws"),
     ("p4d.24xlarge,1,,reserved", "pricing: one of on_demand, spot is expected, not 'reserved'"),
     ("p4d.24xlarge,1", "2 cells under 4 columns")],
)  # fmt: skip
def test_a_bad_row_is_named(tmp_path: Path, line: str, what: str) -> None:
    path = file_of(tmp_path, "instance_type,usd_per_hour,region,pricing", "p3.2xlarge,1,,", line)
    with pytest.raises(CatalogError) as caught:
        read_own_prices(path, load(None))
    assert str(caught.value).startswith(f"{path}, line 3: {what}")
    assert "delete" not in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 1.5, -0.1, float("nan")])
def test_an_impossible_discount_is_refused(share: float) -> None:
    with pytest.raises(CatalogError, match="discount of aws: more than 0 % and up to 100 % is expected"):
        with_own_prices(CATALOG, OwnPrices(discounts={"aws": share}))


def test_a_discount_on_nothing_known_is_refused() -> None:
    with pytest.raises(CatalogError, match="unknown instance type 'nimbus'"):
        with_own_prices(CATALOG, OwnPrices(discounts={"nimbus": 0.1}))
