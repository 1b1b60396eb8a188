"""Answers that contradict known facts: found, and the known fact kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.instance_catalog import Catalog, InstanceType, Price, load
from ddlprof.instance_catalog.refresh.checks import check_on_demand, check_spot, check_type
from ddlprof.instance_catalog.refresh.providers.aws import Aws
from ddlprof.instance_catalog.refresh.providers.aws_answers import parse_type
from ddlprof.instance_catalog.refresh.providers.base import NetworkSpeed, TypeAnswer
from ddlprof.instance_catalog.refresh.report import Contradiction

DUMP = json.loads((Path(__file__).parent / "describe_instance_types.json").read_text(encoding="utf-8"))
ANSWERS = {answer.instance_type: answer for entry in DUMP["InstanceTypes"] if (answer := parse_type(entry))}
GIB_PER_MIB = 1 / 1024
AWS = Aws(clients=lambda service, region: None)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load(None)


def checked(answer: TypeAnswer, catalog: Catalog) -> tuple[InstanceType, list[Contradiction]]:
    row, found = check_type(answer, catalog, AWS, "us-east-1", "2026-09-01")
    assert row is not None
    return row, list(found)


def without(catalog: Catalog, name: str) -> Catalog:
    """As if the type were new."""
    return replace(catalog, instances=tuple(row for row in catalog.instances if row.instance_type != name))


@pytest.mark.parametrize("name", [name for name in ANSWERS if name not in ("g6e.48xlarge", "p6-b200.48xlarge")])
def test_real_answers_agree_with_the_tables(name: str, catalog: Catalog) -> None:
    row, found = checked(ANSWERS[name], catalog)
    known = catalog.instance(name)
    assert not [doubt for doubt in found if doubt.field != "network_gbps"]
    api = ("gpu_model", "gpus", "gpu_fraction", "gpu_memory_gib", "vcpus", "memory_gib", "cpu_arch", "efa_interfaces")
    assert [getattr(row, field) for field in api] == [getattr(known, field) for field in api]
    assert row.network_gbps in (None, known.network_gbps)
    assert (row.spec_as_of, row.cpu_model, row.interconnect) == ("2026-09-01", None, None)


def test_the_total_memory_given_as_that_of_one_gpu(catalog: Catalog) -> None:
    wrong = replace(ANSWERS["g6.12xlarge"], gpu_memory_gib=91553 * GIB_PER_MIB)  # EC2 in 2024-08
    row, found = checked(wrong, catalog)
    assert row.gpu_memory_gib == 24
    assert str(found[0]) == (
        "g6.12xlarge gpu_memory_gib 89.4072 (us-east-1): the total of 4 GPUs given as one's; kept 24"
    )


def test_a_total_that_is_not_the_sum(catalog: Catalog) -> None:
    _, found = checked(replace(ANSWERS["p4d.24xlarge"], total_gpu_memory_gib=40.0), catalog)
    assert [doubt.field for doubt in found] == ["gpu_memory_gib"]
    assert "the total 40 GiB is not that of 8 GPUs" in found[0].reason


@pytest.mark.parametrize(
    ("field", "value"),
    [("gpus", 4), ("vcpus", 95), ("memory_gib", 576.0), ("cpu_arch", "arm64"), ("gpu_fraction", 0.5)],
)
def test_what_never_changes_under_one_name(catalog: Catalog, field: str, value: object) -> None:
    wrong = replace(ANSWERS["p4d.24xlarge"], **{field: value}, total_gpu_memory_gib=None)  # type: ignore[arg-type]
    row, found = checked(wrong, catalog)
    assert [doubt.field for doubt in found] == [field]
    assert getattr(row, field) == getattr(catalog.instance("p4d.24xlarge"), field)


def test_another_gpu_than_is_known(catalog: Catalog) -> None:
    row, found = checked(replace(ANSWERS["p4d.24xlarge"], gpu_name="H100"), catalog)
    assert row.gpu_model == "A100-SXM4-40GB"
    assert [(doubt.field, doubt.answered, doubt.kept) for doubt in found] == [("gpu_model", "H100", "A100-SXM4-40GB")]


def test_cards_that_do_not_add_up(catalog: Catalog) -> None:
    row, found = checked(ANSWERS["g6e.48xlarge"], catalog)
    assert (row.network_gbps, row.network_burst_gbps) == (None, None)
    assert [(doubt.field, doubt.answered, doubt.kept) for doubt in found] == [("network_gbps", "1600", "400")]


def test_a_faster_network_is_taken_over(catalog: Catalog) -> None:
    faster = replace(ANSWERS["g4dn.xlarge"], network=NetworkSpeed(50, burst=True), card_burst_gbps=(50.0,))
    row, found = checked(faster, catalog)
    assert (row.network_gbps, row.network_burst_gbps, found) == (5, 50, [])


@pytest.mark.parametrize(
    ("name", "gpu_model"),
    [
        ("p3.2xlarge", "V100-SXM2-16GB"),
        ("p4d.24xlarge", "A100-SXM4-40GB"),
        ("g6f.large", "L4"),
        ("g7.2xlarge", "RTX-PRO-4500-Blackwell-SE"),
        ("p6-b200.48xlarge", "B200"),
    ],
)
def test_a_new_type_gets_its_gpu_by_name_and_memory(catalog: Catalog, name: str, gpu_model: str) -> None:
    row, _ = checked(ANSWERS[name], without(catalog, name))
    assert row.gpu_model == gpu_model
    known = catalog.instance(name)
    assert (row.gpu_memory_gib, row.family) == (known.gpu_memory_gib, known.family)
    assert row.interconnect == ("none" if row.gpus <= 1 else None)


@pytest.mark.parametrize(
    ("memory_gib", "gpu_model"), [(80.0, "A100-SXM4-80GB"), (320.0, "A100-SXM4-40GB"), (640.0, "A100-SXM4-80GB")]
)
def test_a_new_type_whose_total_is_given_as_one(catalog: Catalog, memory_gib: float, gpu_model: str) -> None:
    answer = replace(ANSWERS["p4d.24xlarge"], gpu_memory_gib=memory_gib, total_gpu_memory_gib=None)
    row, _ = checked(answer, without(catalog, "p4d.24xlarge"))
    assert row.gpu_model == gpu_model


def test_a_new_type_with_an_unknown_gpu_is_left_out(catalog: Catalog) -> None:
    answer = replace(ANSWERS["p4d.24xlarge"], instance_type="p9.48xlarge", gpu_name="R100")
    row, found = check_type(answer, catalog, AWS, "us-east-1", "2026-09-01")
    assert row is None
    assert [str(doubt) for doubt in found] == [
        "p9.48xlarge gpu_model R100 (us-east-1): no GPU of that name with 40 GiB in the catalogue; left out"
    ]


def test_a_new_type_whose_cards_do_not_add_up_has_what_the_string_says(catalog: Catalog) -> None:
    row, found = checked(ANSWERS["g6e.48xlarge"], without(catalog, "g6e.48xlarge"))
    assert (row.network_gbps, row.network_burst_gbps) == (400, 400)
    assert [doubt.kept for doubt in found] == ["400"]


def price(name: str, usd_per_hour: float, basis: str = "read") -> Price:
    return Price("aws", "us-east-1", name, "on_demand", usd_per_hour, "2026-07-20", basis)


def test_on_demand_prices_that_jump_are_not_believed() -> None:
    known = {"a": price("a", 10.0), "b": price("b", 10.0), "c": price("c", 10.0, basis="parity")}
    taken, found = check_on_demand({"a": 31.0, "b": 4.0, "c": 700.0, "d": 2.0, "e": 0.001}, known, "us-east-1")
    assert taken == {"b": 4.0, "c": 700.0, "d": 2.0}  # nobody had read the price of c
    assert [(doubt.instance_type, doubt.kept) for doubt in found] == [("a", "10"), ("e", "")]


def test_spot_prices_are_held_against_on_demand_prices() -> None:
    on_demand = {"a": 10.0, "b": 10.0, "c": 10.0, "e": 10.0}
    prices = {"a": 0.2, "b": 1.0, "c": 25.0, "d": 3.0, "e": 10.0, "f": 0.00001}
    taken, found = check_spot(prices, on_demand, {}, "us-east-1")
    assert taken == {"b": 1.0, "d": 3.0, "e": 10.0}
    assert [doubt.instance_type for doubt in found] == ["a", "c", "f"]
    assert found[0].reason == "not between 0.03 and 2 of the on-demand price 10"
