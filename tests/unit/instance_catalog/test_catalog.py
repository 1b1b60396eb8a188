"""Queries of a catalogue, on one made up here and on the embedded one."""

from __future__ import annotations

import pytest

from ddlprof.instance_catalog import Catalog, CatalogError, Gpu, InstanceType, LinkFact, Price, load


def machine(name: str, **facts: object) -> InstanceType:
    known = {"cloud": "aws", "family": "x", "gpu_model": "A100-SXM4-40GB", "gpus": 8, "gpu_fraction": 1.0}
    return InstanceType(instance_type=name, **{**known, **facts})  # type: ignore[arg-type]


CATALOG = Catalog(
    instances=(
        machine("x.big", gpu_memory_gib=40.0, offered_regions=("us-east-1",)),
        machine("x.old", gpu_model="V100-SXM2-16GB", gpu_memory_gib=16.0, offered=False),
        machine("x.part", gpus=0, gpu_fraction=0.25, gpu_memory_gib=10.0),
        machine("x.unknown", gpu_memory_gib=None, gpus=1),
        machine("y8", cloud="lambda", gpu_model="A100-PCIE-80GB", gpu_memory_gib=80.0),
    ),
    gpus=(
        Gpu("A100-SXM4-40GB", memory_gib=40),
        Gpu("A100-PCIE-80GB", memory_gib=80),
        Gpu("V100-SXM2-16GB", memory_gib=16),
    ),
    prices=(
        Price("aws", "us-east-1", "x.big", "on_demand", 30.0, "2026-07-20", "read"),
        Price("aws", "us-east-1", "x.big", "spot", 10.0, "2026-08-08", "read"),
        Price("aws", "eu-west-1", "x.old", "on_demand", 20.0, "2017-11-12", "read_old"),
        Price("aws", "us-west-2", "x.old", "on_demand", 15.0, "", "parity"),
        Price("lambda", "any", "y8", "on_demand", 12.0, "", "read_undated"),
    ),
)


def names(**asked: object) -> list[str]:
    return [row.instance_type for row in CATALOG.select(**asked)]  # type: ignore[arg-type]


def test_a_type_is_found_in_any_case() -> None:
    assert CATALOG.instance(" X.Big ").instance_type == "x.big"
    assert CATALOG.instance("y8", cloud="lambda").cloud == "lambda"


def test_a_typo_names_the_closest() -> None:
    with pytest.raises(CatalogError, match=r"unknown instance type 'p4d.24xlarg'; closest: p4d\.24xlarge"):
        load(None).instance("p4d.24xlarg")
    with pytest.raises(CatalogError, match="y8 is a type of lambda, not of aws"):
        CATALOG.instance("y8", cloud="aws")


def test_select_filters_by_what_is_asked() -> None:
    assert names() == ["x.big", "x.old", "x.part", "x.unknown", "y8"]
    assert names(gpu="A100", include_fractional=False) == ["x.big", "x.unknown", "y8"]
    assert names(gpu="A100 80GB") == ["y8"]
    assert names(cloud="lambda") == ["y8"]
    assert names(cloud="any") == names()
    assert names(include_retired=False) == ["x.big", "x.part", "x.unknown", "y8"]
    assert names(min_gpus=2) == ["x.big", "x.old", "y8"]
    assert names(instance_types=["X.OLD", "y8"]) == ["x.old", "y8"]


def test_a_fact_that_is_not_known_meets_no_minimum() -> None:
    assert names(min_gpu_memory_gib=16) == ["x.big", "x.old", "y8"]
    assert names(min_gpu_memory_gib=40) == ["x.big", "y8"]


def test_a_region_has_what_is_offered_or_priced_there() -> None:
    assert names(region="us-east-1") == ["x.big", "y8"]
    assert names(region="eu-west-1") == ["x.old", "y8"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [({"gpu": "A1000"}, "unknown GPU 'A1000'"), ({"cloud": "asw"}, "unknown cloud 'asw'; known: aws, lambda"),
     ({"region": "us-est-1"}, "nothing is known of region 'us-est-1'; known: eu-west-1, us-east-1, us-west-2"),
     ({"instance_types": ["x.bgi"]}, "unknown instance type 'x.bgi'; closest: x.big")],
)  # fmt: skip
def test_a_mistake_is_an_error_and_not_an_empty_table(asked: dict[str, object], message: str) -> None:
    with pytest.raises(CatalogError) as caught:
        names(**asked)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_price_of_a_region() -> None:
    price = CATALOG.price("x.big", "us-east-1", "spot")
    assert price is not None
    assert (price.usd_per_hour, price.as_of) == (10.0, "2026-08-08")
    assert CATALOG.price("x.big", "eu-west-1") is None
    assert CATALOG.price("x.unknown") is None


def test_without_a_region_the_reference_region_then_the_lowest_that_was_read() -> None:
    big, old = CATALOG.price("x.big"), CATALOG.price("x.old")
    assert big is not None
    assert old is not None
    assert big.region == "us-east-1"
    assert (old.region, old.usd_per_hour) == ("eu-west-1", 20.0), "15.0 was assumed, not read"


def test_prices_of_unknown_things_are_errors() -> None:
    with pytest.raises(CatalogError, match="unknown instance type"):
        CATALOG.price("x.bgi")
    with pytest.raises(CatalogError, match="unknown pricing 'reserved'; known: on_demand, spot"):
        CATALOG.price("x.big", pricing="reserved")
    with pytest.raises(CatalogError, match="region"):
        CATALOG.price("x.big", "us-est-1")


def test_regions() -> None:
    assert CATALOG.regions() == ("eu-west-1", "us-east-1", "us-west-2")
    assert CATALOG.regions("lambda") == ()


def test_the_newest_measured_fact_is_given() -> None:
    old, new = (
        LinkFact("host-a", "allreduce_inter_gb_s", value, "GB/s", day, "run-1")
        for value, day in ((1.0, "2026-01-01"), (2.0, "2026-02-01"))
    )
    catalog = Catalog((), (), (), links=(new, old))
    assert catalog.link("host-a", "allreduce_inter_gb_s") == new
    assert catalog.link("host-b", "allreduce_inter_gb_s") is None
