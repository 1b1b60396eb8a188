"""Loading: with the standard library alone, and what follows from several tables."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from ddlprof.instance_catalog import Disagreement, FlowLimit, Gpu, InstanceType, LinkPair, Price, Source, load
from ddlprof.instance_catalog.clouds import Cloud
from ddlprof.instance_catalog.loading import DATA
from ddlprof.instance_catalog.records import GpuLink

CATALOG = load(None)


def test_loading_imports_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules);"
        "from ddlprof import instance_catalog as ic; ic.load(None).select(gpu='A100');"
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= set(sys.stdlib_module_names) | {"ddlprof"}


def test_who_only_reads_files_imports_no_catalogue() -> None:
    code = (
        "import sys; import ddlprof.base.reading; print('ddlprof.instance_catalog.records' in sys.modules);"
        "import ddlprof.instance_catalog.loading, ddlprof.instance_catalog.overlay;"
        "from ddlprof import instance_catalog as ic;"
        "print(callable(ic.load), callable(ic.default_overlay), ic.Catalog.__name__, hasattr(ic, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", "Catalog", "False"]


@pytest.mark.parametrize(
    ("name", "flow", "placement_group", "ena_express"),
    [("g4dn.12xlarge", 5, 10, None), ("p5.48xlarge", 5, 10, 25), ("g6e.48xlarge", 5, 10, 25),
     ("g4dn.xlarge", 5, 10, None), ("a2-highgpu-8g", None, None, None), ("gpu_8x_a100", None, None, None)],
)  # fmt: skip
def test_flow_limits_of_a_type(
    name: str, flow: float | None, placement_group: float | None, ena_express: float | None
) -> None:
    row = CATALOG.instance(name)
    assert (row.flow_gbps, row.flow_placement_group_gbps, row.flow_ena_express_gbps) == (
        flow, placement_group, ena_express,
    )  # fmt: skip


def test_no_flow_is_faster_than_its_machine() -> None:
    for row in CATALOG.instances:
        for flow in (row.flow_gbps, row.flow_placement_group_gbps, row.flow_ena_express_gbps):
            assert flow is None or flow <= (row.network_burst_gbps or row.network_gbps or flow)


def test_pairs_are_given_where_links_are_not_uniform() -> None:
    assert CATALOG.instance("p3.8xlarge").link_pairs[0] == LinkPair(0, 1, 1)
    assert CATALOG.instance("p4d.24xlarge").link_pairs == ()


def test_prices_carry_their_basis() -> None:
    price = CATALOG.price("p5.48xlarge", "us-west-2")
    assert price is not None
    assert (price.basis, price.assumed) == ("parity", True)


def test_every_column_is_in_the_dictionary() -> None:
    text = (DATA / "README.md").read_text(encoding="utf-8")
    for path in DATA.glob("*.csv"):
        assert f"`{path.name}`" in text
        header = path.read_text(encoding="utf-8").splitlines()[0]
        assert [column for column in header.split(",") if f"`{column}`" not in text] == []


@pytest.mark.parametrize(
    ("name", "record"),
    [("instances", InstanceType), ("prices", Price), ("gpus", Gpu), ("gpu_links", GpuLink),
     ("flow_limits", FlowLimit), ("sources", Source), ("disagreements", Disagreement),
     ("clouds", Cloud)],
)  # fmt: skip
def test_files_have_exactly_the_columns_of_their_records(name: str, record: type[InstanceType]) -> None:
    header = (DATA / f"{name}.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    derived = getattr(record, "DERIVED", ())
    assert sorted(header) == sorted(field.name for field in fields(record) if field.name not in derived)
