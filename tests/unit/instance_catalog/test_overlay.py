"""The user's overlay: where it lies, what it changes, what damage says, that writing leaves the old or the new."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ddlprof.instance_catalog import CatalogError, InstanceType, LinkFact, Price, Reached, default_overlay, load
from ddlprof.instance_catalog.overlay import (
    Overlay,
    add_links,
    add_reached,
    merge_instances,
    merge_prices,
    read_overlay,
    write_instances,
    write_prices,
)

P4D = InstanceType("aws", "p4d.24xlarge", "p4d", "A100-SXM4-40GB", 8, 1.0, vcpus=97, spec_as_of="2026-12-01",
                   source="EC2 API")  # fmt: skip


def price(usd_per_hour: float, as_of: str, basis: str = "api", region: str = "us-east-1") -> Price:
    return Price("aws", region, "p4d.24xlarge", "on_demand", usd_per_hour, as_of, basis, "AWS Pricing API")


def link(value: float = 7.5, what: str = "flow_placement_group_gbps", day: str = "2026-11-20") -> LinkFact:
    return LinkFact("p4d.24xlarge", what, value, "Gbit/s", day, "run train-20261120")


def test_the_environment_chooses_the_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path / "mine"))
    assert default_overlay() == tmp_path / "mine"


@pytest.mark.parametrize(
    ("platform", "data", "expected"),
    [("linux", "/data", "/data/ddlprof/catalog"), ("linux", None, "/home/ann/.local/share/ddlprof/catalog"),
     ("darwin", "/data", "/home/ann/Library/Application Support/ddlprof/catalog")],
)  # fmt: skip
def test_else_the_users_data_directory(
    monkeypatch: pytest.MonkeyPatch, platform: str, data: str | None, expected: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    if data:
        monkeypatch.setenv("XDG_DATA_HOME", data)
    assert default_overlay() == Path(expected)


def test_load_takes_the_users_overlay_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_prices(tmp_path, [price(1.5, "2026-12-01")])
    monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path))
    found = load().price("p4d.24xlarge")
    assert found is not None
    assert found.usd_per_hour == 1.5


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    rows = [
        InstanceType("aws", "x.1", "x", "T4", 0, 0.125, efa=False, offered=True, offered_regions=("a", "b"),
                     local_storage_gib=0.1, notes='quotes ", commas\nand lines'),
        InstanceType("aws", "x.2", "x", "T4", 1, 1.0),
    ]  # fmt: skip
    write_instances(tmp_path, rows)
    write_prices(tmp_path, [price(0.1, "2026-12-01")])
    add_links(tmp_path, [link()])
    assert read_overlay(tmp_path) == Overlay(tuple(rows), (price(0.1, "2026-12-01"),), (link(),))


def test_the_newer_fact_wins_field_by_field(tmp_path: Path) -> None:
    write_instances(tmp_path, [P4D])
    before, after = load(None).instance("p4d.24xlarge"), load(tmp_path).instance("p4d.24xlarge")
    assert (before.vcpus, after.vcpus) == (96, 97)
    assert after.memory_gib == before.memory_gib, "an empty cell erases nothing"
    assert after.offered_regions == before.offered_regions
    assert after.spec_as_of == "2026-12-01"
    assert after.source == f"EC2 API;{before.source}"


def test_an_older_row_only_fills_what_is_not_known() -> None:
    known = InstanceType("aws", "x", "x", "T4", 1, 1.0, vcpus=4, spec_as_of="2026-08-01", source="a")
    older = InstanceType("aws", "x", "x", "T4", 1, 1.0, vcpus=8, memory_gib=16.0, spec_as_of="2026-01-01", source="b")
    (merged,) = merge_instances([known], [older])
    assert (merged.vcpus, merged.memory_gib, merged.spec_as_of, merged.source) == (4, 16.0, "2026-08-01", "a;b")


@pytest.mark.parametrize(
    ("known", "newer", "expected"),
    [(("2026-07-20", "read"), ("2026-11-21", "api"), 2.0), (("2026-07-20", "read"), ("2026-01-01", "api"), 1.0),
     (("2026-07-20", "read"), ("2026-07-20", "api"), 2.0), (("2026-07-20", "parity"), ("2026-01-01", "api"), 2.0),
     (("", "read_undated"), ("2026-01-01", "api"), 2.0), (("2026-07-20", "read"), ("2026-11-21", "derived"), 1.0)],
)  # fmt: skip
def test_of_two_prices_the_newer_that_was_read(known: tuple[str, str], newer: tuple[str, str], expected: float) -> None:
    (merged,) = merge_prices([price(1.0, *known)], [price(2.0, *newer)])
    assert merged.usd_per_hour == expected


def test_what_a_user_measured_takes_precedence(tmp_path: Path) -> None:
    add_links(tmp_path, [link(7.5)])
    row = load(tmp_path).instance("p4d.24xlarge")
    assert (row.flow_placement_group_gbps, row.flow_gbps) == (7.5, 5)
    assert row.source.startswith("measured: run train-20261120;")
    assert load(tmp_path).link("p4d.24xlarge", "flow_placement_group_gbps") == link(7.5)


HEADER = "cloud,region,instance_type,pricing,usd_per_hour,as_of,basis,source"


@pytest.mark.parametrize(
    ("line", "what"),
    [("aws,us-east-1,x,on_demand,0,2026-01-01,api,s", "usd_per_hour: a positive number is expected, not 0.0"),
     ("aws,us-east-1,x,on_demand,nan,2026-01-01,api,s", "usd_per_hour: a number of 0 or more is expected, not nan"),
     ("aws,us-east-1,x,on_demand,cheap,2026-01-01,api,s", "usd_per_hour: a number of 0 or more is expected, not 'ch"),
     ("aws,us-east-1,x,reserved,1,2026-01-01,api,s", "pricing: one of on_demand, spot is expected, not 'reserved'"),
     ("aws,us-east-1,x,on_demand,1,yesterday,api,s", "as_of: an ISO date such as 2026-08-31 is expected, not"),
     ("aws,us-east-1,x,on_demand,1,20260101,api,s", "as_of: an ISO date such as 2026-08-31 is expected"),
     ("aws,us-east-1,x,on_demand,,2026-01-01,api,s", "a cell that must be filled is empty"),
     ("aws,us-east-1,x", "3 cells under 8 columns"),
     ('aws,us-east-1,"x,on_demand,1,2026-01-01,api,s', "unexpected end of data")],
)  # fmt: skip
def test_damage_names_the_file_and_the_line(tmp_path: Path, line: str, what: str) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(f"{HEADER}\naws,us-east-1,y,spot,1,2026-01-01,api,s\n{line}\n", encoding="utf-8")
    with pytest.raises(CatalogError) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"{path}, line 3: {what}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"", "line 1: no column cloud"), (b"cloud,region\n", "line 1: no column instance_type"),
     (b"\xff\xfe\x00", "line 1: not UTF-8 text"), (HEADER.encode() + b"\na,b,\0\n", "line 2")],
)  # fmt: skip
def test_files_that_are_no_tables(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "prices.csv").write_bytes(content)
    with pytest.raises(CatalogError) as caught:
        load(tmp_path)
    assert what in str(caught.value)
    assert str(tmp_path / "prices.csv") in str(caught.value)


def test_a_link_in_the_wrong_unit_is_damage(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Gbit/s is expected"):
        LinkFact("p4d.24xlarge", "flow_gbps", 1.2, "GB/s", "2026-11-20", "run")
    (tmp_path / "links.csv").write_text(
        "machine,what,value,unit,measured_at,source\np4d.24xlarge,flow_gbps,1.2,GB/s,2026-11-20,run\n", encoding="utf-8"
    )
    with pytest.raises(CatalogError, match=r"links\.csv, line 2: unit of flow_gbps: Gbit/s is expected, not 'GB/s'"):
        load(tmp_path)


def test_columns_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    text = f"{HEADER},colour\naws,us-east-1,p4d.24xlarge,on_demand,2,2026-12-01,api,s,blue\n"
    (tmp_path / "prices.csv").write_text(text, encoding="utf-8")
    found = load(tmp_path).price("p4d.24xlarge")
    assert found is not None
    assert found.usd_per_hour == 2


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_prices(tmp_path, [price(1.0, "2026-01-01")])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CatalogError, match=r"prices\.csv: cannot be written: No space left on device"):
        write_prices(tmp_path, [price(2.0, "2026-01-02")])
    assert [path.name for path in tmp_path.iterdir()] == ["prices.csv"]
    assert read_overlay(tmp_path).prices == (price(1.0, "2026-01-01"),)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(CatalogError, match="cannot be written"):
        write_prices(tmp_path / "file", [price(1.0, "2026-01-01")])


@pytest.mark.parametrize(
    ("change", "what"),
    [({"gpus": "-1"}, "gpus: a whole number of 0 or more is expected, not -1"),
     ({"gpus": "1.5"}, "gpus: a whole number of 0 or more is expected, not '1.5'"),
     ({"gpus": "9" * 400}, "gpus: a whole number that is not so large is expected"),
     ({"gpus": "9" * 5000}, "gpus: a whole number of 0 or more is expected, not '99999"),
     ({"gpu_memory_gib": "0"}, "gpu_memory_gib: a positive number is expected, not 0.0"),
     ({"network_gbps": "1e999"}, "network_gbps: a number that is not so large is expected, not inf"),
     ({"pcie_gen": "9"}, "pcie_gen: a whole number from 1 to 6 is expected, not 9"),
     ({"efa": "perhaps"}, "efa: true or false is expected, not 'perhaps'"),
     ({"source": "x" * 200_000}, "field larger than field limit")],
)  # fmt: skip
def test_values_of_a_type_that_cannot_be(tmp_path: Path, change: dict[str, str], what: str) -> None:
    row = {"cloud": "aws", "instance_type": "x", "family": "x", "gpu_model": "T4", "gpus": "1", "gpu_fraction": "1"}
    row |= change
    path = tmp_path / "instances.csv"
    path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n", encoding="utf-8")
    with pytest.raises(CatalogError) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"{path}, line 2: {what}")
    assert len(str(caught.value)) < 300


def test_the_gpu_of_a_type_of_ones_own(tmp_path: Path) -> None:
    write_instances(tmp_path, [InstanceType("aws", "p9.xlarge", "p9", "Tesla T4", 1, 1.0)])
    assert load(tmp_path).instance("p9.xlarge").gpu_model == "T4"
    write_instances(tmp_path, [InstanceType("aws", "p9.xlarge", "p9", "T44", 1, 1.0)])
    with pytest.raises(CatalogError, match=r"^instances\.csv .*p9\.xlarge: unknown GPU 'T44'; closest: T4"):
        load(tmp_path)


def test_a_file_of_a_million_rows_is_not_begun(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(HEADER + "\n" * 1_000_000, encoding="utf-8")
    with pytest.raises(CatalogError, match="has more than 100000 lines"):
        load(tmp_path)
    with path.open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(CatalogError, match="at most 32 MiB are read"):
        load(tmp_path)


def test_what_is_no_file_or_no_folder(tmp_path: Path) -> None:
    (tmp_path / "links.csv").mkdir()
    with pytest.raises(CatalogError, match="is a directory, not a regular file"):
        load(tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(CatalogError, match="cannot be read: Not a directory"):
        load(tmp_path / "file")


def test_the_folder_of_a_user_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDLPROF_CATALOG", "~nobody-of-that-name/catalog")
    assert load().instances


def test_the_newest_probe_of_a_gpu_counts_and_that_of_the_machine_before_it(tmp_path: Path) -> None:
    first = Reached("A100-SXM4-40GB", bf16_tflops=240.0, measured_at="2026-11-01", instance_type="p4d.24xlarge")
    add_reached(tmp_path, [first, Reached("L4", memory_gb_s=260.0, measured_at="2026-11-02")])
    elsewhere = Reached("A100-SXM4-40GB", bf16_tflops=270.0, launch_us=4.5, measured_at="2026-11-03")
    add_reached(tmp_path, [elsewhere])
    catalog = load(tmp_path)
    assert catalog.reached_by("A100-SXM4-40GB") == elsewhere
    assert catalog.reached_by("A100-SXM4-40GB", "p4d.24xlarge") == first
    assert catalog.reached_by("T4") is None
    again = Reached("A100-SXM4-40GB", bf16_tflops=250.0, measured_at="2026-11-04", instance_type="p4d.24xlarge")
    add_reached(tmp_path, [again])
    assert len(read_overlay(tmp_path).reached) == 3
    assert load(tmp_path).reached_by("A100-SXM4-40GB", "p4d.24xlarge") == again


def test_a_damaged_probe_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "reached.csv").write_text("gpu_model,bf16_tflops\nT4,-1\n", encoding="utf-8")
    with pytest.raises(CatalogError, match="line 2: bf16_tflops: a positive number is expected"):
        load(tmp_path)
