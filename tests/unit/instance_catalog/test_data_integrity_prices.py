"""The embedded prices as data: above zero, dated where read, and in sane ratios to each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import date
from itertools import pairwise

import pytest

from ddlprof.instance_catalog import Price, load, table
from ddlprof.instance_catalog.clouds import Cloud, cloud_named
from ddlprof.instance_catalog.loading import DATA
from ddlprof.instance_catalog.records import MARKET_PRICE
from ddlprof.instance_catalog.refresh import PUBLISHED

CATALOG = load(None)
PRICES = CATALOG.prices
TYPES = {(row.cloud, row.instance_type): row for row in CATALOG.instances}
BASES = {"read", "read_undated", "read_old", "market", "parity", "derived", "recalled"}
SPOT_AT_ON_DEMAND = {("eu-west-1", "p3.16xlarge")}
"""Spot published at the on-demand price: nothing was to be had."""
USD_PER_GPU_HOUR = (0.3, 30.0)
"""Of one whole GPU, on demand: 0.42 for a T4G to 27.04 for a GB200."""
CHEAPER = {("verda", "V100")}
"""Clouds and families below that: Verda asks 0.17 for a V100."""


def by_key(pricing: str) -> dict[tuple[str, str, str], Price]:
    return {(row.cloud, row.region, row.instance_type): row for row in PRICES if row.pricing == pricing}


def test_every_price_is_above_zero_and_of_a_known_type() -> None:
    assert all(row.usd_per_hour > 0.03 for row in PRICES)
    assert {(row.cloud, row.instance_type) for row in PRICES} <= set(TYPES)


def test_one_price_for_each_key() -> None:
    counts = Counter((row.cloud, row.region, row.instance_type, row.pricing) for row in PRICES)
    assert max(counts.values()) == 1


def test_bases_are_known_and_what_was_read_has_a_date() -> None:
    assert {row.basis for row in PRICES} == BASES
    for row in PRICES:
        if row.basis in ("read", "read_old", "market", "parity"):
            assert date(2017, 1, 1) <= date.fromisoformat(row.as_of) <= date(2026, 11, 30)
        if row.basis in ("read_undated", "recalled"):
            assert row.as_of == ""
        assert row.assumed == (row.basis in ("parity", "derived", "recalled"))


def test_what_was_assumed_equal_to_us_east_1_is_equal() -> None:
    known = by_key("on_demand")
    copies = [row for row in PRICES if row.basis == "parity"]
    assert len(copies) == 103
    assert all(known["aws", "us-east-1", row.instance_type].usd_per_hour == row.usd_per_hour for row in copies)


def test_spot_costs_no_more_than_on_demand() -> None:
    on_demand = by_key("on_demand")
    compared = 0
    for key, spot in by_key("spot").items():
        if key not in on_demand:
            continue
        compared += 1
        ratio = spot.usd_per_hour / on_demand[key].usd_per_hour
        assert 0.1 < ratio <= 1, spot
        assert (key[1:] in SPOT_AT_ON_DEMAND) == (ratio > 0.999), spot
    assert compared > 200


def test_a_gpu_hour_costs_what_gpu_hours_cost() -> None:
    for key, price in by_key("on_demand").items():
        row = TYPES[key[0], key[2]]
        if row.gpus:
            usd_per_gpu_hour = price.usd_per_hour / row.gpus
            assert usd_per_gpu_hour <= USD_PER_GPU_HOUR[1], price
            assert (usd_per_gpu_hour < USD_PER_GPU_HOUR[0]) == ((row.cloud, row.family) in CHEAPER), price


def test_more_of_a_family_costs_more() -> None:
    families = defaultdict(list)
    for key, price in by_key("on_demand").items():
        row = TYPES[key[0], key[2]]
        families[row.cloud, row.family, price.region, price.basis].append((row.gpus, row.vcpus or 0, price))
    compared = 0
    for offers in families.values():
        for (gpus, vcpus, small), (more_gpus, more_vcpus, big) in pairwise(sorted(offers, key=lambda offer: offer[:2])):
            if gpus <= more_gpus and vcpus < more_vcpus:
                compared += 1
                assert small.usd_per_hour < big.usd_per_hour, (small, big)
    assert compared > 200


def test_regions_are_within_reason_of_each_other() -> None:
    offers = defaultdict(list)
    for (cloud, _, name), price in by_key("on_demand").items():
        offers[cloud, name].append(price.usd_per_hour)
    for key, found in offers.items():
        assert max(found) / min(found) < 1.7, key


def test_types_without_a_price_have_none() -> None:
    priced = {(row.cloud, row.instance_type) for row in PRICES if row.pricing == "on_demand"}
    assert {name for cloud, name in set(TYPES) - priced} == {
        "a3-ultragpu-8g", "a4-highgpu-8g", "p5e.48xlarge", "p6e-gb200.36xlarge",
        "Standard_ND96isr_MI300X_v5", "BM.GPU.MI300X.8",
    }  # fmt: skip
    assert CATALOG.price("p6e-gb200.36xlarge") is None


@pytest.mark.parametrize(
    ("name", "region", "pricing", "usd_per_hour", "basis"),
    [("p4d.24xlarge", "us-east-1", "spot", 14.2313, "read"), ("p3.16xlarge", "us-east-1", "spot", 6.5858, "read"),
     ("g4dn.xlarge", "us-west-2", "on_demand", 0.526, "parity"),
     ("p4d.24xlarge", "eu-west-1", "on_demand", 23.71569, "read_undated"),
     ("p5.48xlarge", "us-west-2", "on_demand", 55.04, "parity"),
     ("a2-highgpu-8g", "us-central1", "on_demand", 29.38708, "read"),
     ("Standard_ND96isr_H100_v5", "eastus", "on_demand", 98.32, "read"),
     ("gpu_8x_h100_sxm5", "any", "on_demand", 31.92, "read_undated"),
     ("BM.GPU.H100.8", "any", "on_demand", 80, "read"),
     ("gd-8xh100ib-i128", "north-america", "on_demand", 49.24, "read"),
     ("gpu-h200-sxm_8gpu-128vcpu-1600gb", "any", "on_demand", 36, "read"), ("n3-H100x8", "any", "spot", 16, "read"),
     ("1B200.30V", "any", "spot", 3.055, "read"), ("8x_H200-SXM_SECURE", "any", "on_demand", 36.72, "read"),
     ("1x-H100_SXM", "any", "on_demand", 2.4024, "market")],
)  # fmt: skip
def test_prices_as_the_sources_have_them(name: str, region: str, pricing: str, usd_per_hour: float, basis: str) -> None:
    price = CATALOG.price(name, region, pricing)
    assert price is not None
    assert (price.usd_per_hour, price.basis) == (usd_per_hour, basis)


def test_only_prices_of_a_market_are_marked_as_such() -> None:
    assert {row.cloud for row in PRICES if row.basis == MARKET_PRICE} == {"vast"}
    assert {row.basis for row in PRICES if row.cloud == "vast"} == {MARKET_PRICE}


def test_every_cloud_has_prices_and_a_reference_region_that_has_them() -> None:
    clouds = {row.cloud for row in TYPES.values()}
    assert len(clouds) >= 10
    rows = {row.cloud for row in table.read(DATA / "clouds.csv", Cloud)}
    assert clouds <= rows
    assert rows - clouds <= set(PUBLISHED), "they have machines once a refresh has read their prices"
    for cloud in clouds:
        reference = cloud_named(cloud).reference_region
        assert any((row.cloud, row.region) == (cloud, reference) for row in PRICES), cloud
