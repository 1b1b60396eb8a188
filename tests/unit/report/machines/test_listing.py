"""The catalogue as table, JSON and CSV, of a catalogue made by hand."""

from __future__ import annotations

import csv
import io
import json

import pytest

from ddlprof.instance_catalog import Catalog, InstanceType, Price
from ddlprof.report.machines.listing import COLUMNS, as_csv, as_json, as_table, rows_of

EIGHT = InstanceType(
    "aws", "p4d.24xlarge", "p4d", "A100-SXM4-40GB", 8, 1.0, gpu_memory_gib=40.0, vcpus=96, memory_gib=1152.0,
    interconnect="nvlink3", interconnect_gb_s=300.0, network_gbps=400.0, network_burst_gbps=400.0, efa=True,
    local_storage_gib=7450.6, offered=True, spec_as_of="2026-08-02", source="dump;text",
)  # fmt: skip
ONE = InstanceType("aws", "g6.xlarge", "g6", "L4", 1, 1.0, gpu_memory_gib=24.0, vcpus=4, efa=False, offered=True)
EIGHTH = InstanceType("aws", "g6f.large", "g6f", "L4", 0, 0.125, gpu_memory_gib=3.0, vcpus=2, efa=False, offered=True)
OLD = InstanceType("aws", "p2.xlarge", "p2", "K80", 1, 1.0, offered=False)
ELSEWHERE = InstanceType("lambda", "gpu_1x_a10", "gpu", "A10", 1, 1.0)
SIZES = [InstanceType("aws", f"g5.{n}", "g5", "A10G", gpus, 1.0, vcpus=vcpus)
         for n, gpus, vcpus in (("12xlarge", 4, 48), ("16xlarge", 1, 64), ("xlarge", 1, 4))]  # fmt: skip
PRICES = (
    Price("aws", "us-east-1", "p4d.24xlarge", "on_demand", 21.957642, "2026-07-20", "read", "list;other"),
    Price("aws", "us-east-1", "p4d.24xlarge", "spot", 14.2313, "2026-08-08", "read", "spot"),
    Price("aws", "us-west-2", "p4d.24xlarge", "on_demand", 22.0, "", "parity", "list"),
    Price("aws", "us-east-1", "g6.xlarge", "on_demand", 0.8048, "", "recalled"),
    Price("lambda", "any", "gpu_1x_a10", "on_demand", 1.29, "", "read_undated"),
)
MACHINES = (EIGHT, ONE, EIGHTH, OLD, ELSEWHERE)
CATALOG = Catalog(instances=MACHINES, gpus=(), prices=PRICES)

WIDE = """\
aws us-east-1: prices on demand as of 2026-07-20, some undated, spot as of 2026-08-08
instance type  GPUs                GiB each  between GPUs  GB/s  vCPUs  RAM GiB  net Gbit/s  burst  EFA  disk GiB   USD/h    spot
g6.xlarge      1 x L4                    24  -                -      4        -           -      -  no          -  ~0.805       -
g6f.large      1/8 x L4                   3  -                -      2        -           -      -  no          -       -       -
p2.xlarge *    1 x K80                    -  -                -      -        -           -      -  -           -       -       -
p4d.24xlarge   8 x A100-SXM4-40GB        40  nvlink3        300     96     1152         400    400  yes    7450.6  21.958  14.231

lambda: prices on demand undated
instance type  GPUs     USD/h  spot
gpu_1x_a10     1 x A10  1.290     -

USD an hour: Linux, shared tenancy, no commitment.  -  not known.  ~  assumed, read nowhere.  *  retired.
Sources and other regions: ddlprof instances show TYPE
"""  # noqa: E501


def test_the_table() -> None:
    assert as_table(rows_of(CATALOG, MACHINES), 160) == WIDE


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_columns_that_do_not_fit_are_left_out(width: int) -> None:
    blocks = as_table(rows_of(CATALOG, MACHINES), width).split("\n\n")
    rows = [line for block in blocks[:-1] for line in block.splitlines()[1:]]
    assert all(len(row) <= width for row in rows)
    header = rows[0].split("  ")
    assert (header[0], header[-1]) == ("instance type", "spot")


def test_what_identifies_a_machine_and_its_price_is_never_left_out() -> None:
    header = as_table(rows_of(CATALOG, MACHINES), 1).splitlines()[1]
    assert header.split() == ["instance", "type", "GPUs", "USD/h", "spot"]


def test_notes_explain_only_the_marks_that_are_there() -> None:
    (heading, _, _, _, notes, _) = as_table(rows_of(CATALOG, [EIGHT]), 160).splitlines()
    assert heading == "aws us-east-1: prices on demand as of 2026-07-20, spot as of 2026-08-08"
    assert notes == "USD an hour: Linux, shared tenancy, no commitment."


def test_a_family_is_ordered_by_size() -> None:
    names = [row.machine.instance_type for row in rows_of(CATALOG, SIZES)]
    assert names == ["g5.xlarge", "g5.16xlarge", "g5.12xlarge"]


def test_prices_of_a_region() -> None:
    (row,) = rows_of(CATALOG, [EIGHT], "us-west-2")
    assert (row.region, row.on_demand, row.spot) == ("us-west-2", PRICES[2], None)


def test_a_cloud_with_one_price_everywhere_has_it_in_any_region() -> None:
    (row,) = rows_of(CATALOG, [ELSEWHERE], "us-west-2")
    assert (row.region, row.on_demand) == ("any", PRICES[-1])


def test_json() -> None:
    eighth, _, eight = (json.loads(as_json(rows_of(CATALOG, [EIGHT, OLD, EIGHTH])))[i] for i in range(3))
    assert tuple(eight) == COLUMNS
    assert (eight["gpus"], eight["gpu_fraction"], eighth["gpus"], eighth["gpu_fraction"]) == (8, 1.0, 0, 0.125)
    assert (eight["on_demand_usd_per_hour"], eight["spot_usd_per_hour"]) == (21.957642, 14.2313)
    assert (eight["price_as_of"], eight["source"]) == ("2026-07-20", "dump;text;list;other;spot")
    unknown = ("on_demand_usd_per_hour", "on_demand_basis", "spot_usd_per_hour", "price_as_of", "spec_as_of", "source")
    assert all(eighth[name] is None for name in unknown)


def test_of_an_undated_price_no_date_is_claimed() -> None:
    (row,) = json.loads(as_json(rows_of(CATALOG, [ONE])))
    assert (row["on_demand_usd_per_hour"], row["on_demand_as_of"], row["price_as_of"]) == (0.8048, None, None)


def test_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(rows_of(CATALOG, MACHINES)))))
    eight = next(row for row in rows if row["instance_type"] == "p4d.24xlarge")
    assert tuple(eight) == COLUMNS
    assert (eight["efa"], eight["on_demand_usd_per_hour"]) == ("true", "21.957642")
    old = next(row for row in rows if row["instance_type"] == "p2.xlarge")
    assert (old["offered"], old["vcpus"], old["on_demand_usd_per_hour"]) == ("false", "", "")
