"""The embedded instance types as data: what must hold for every row, and the sixteen common types figure by figure.

`ec2_api.csv` holds what DescribeInstanceTypes answered (getmoto/moto, see `data/sources.csv`), as a second source.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from ddlprof.instance_catalog import InstanceType, load

CATALOG = load(None)
TYPES = CATALOG.instances
EC2_API = list(csv.DictReader((Path(__file__).parent / "ec2_api.csv").read_text(encoding="utf-8").splitlines()))
WHOLE = [row for row in TYPES if row.gpu_fraction == 1]
EXPECTED = """
instance_type,gpu_model,gpus,gpu_memory_gib,vcpus,memory_gib,interconnect,interconnect_gb_s,nvswitch,pcie_gen,pcie_lanes,network_gbps,network_burst_gbps,network_cards,efa_interfaces,local_storage_gib,ebs_gbps,ebs_burst_gbps,on_demand,flow_gbps,flow_placement_group_gbps
p2.xlarge,K80,1,12,4,61,none,,False,3,16,1.25,10,1,0,0,0.75,0.75,0.9,5,10
p2.8xlarge,K80,8,12,32,488,pcie3,15.75,False,3,16,10,10,1,0,0,5,5,7.2,5,10
p2.16xlarge,K80,16,12,64,732,pcie3,15.75,False,3,16,25,25,1,0,0,10,10,14.4,5,10
p3.2xlarge,V100-SXM2-16GB,1,16,8,61,none,,False,3,16,2.5,10,1,0,0,1.75,1.75,3.06,5,10
p3.8xlarge,V100-SXM2-16GB,4,16,32,244,nvlink2,100,False,3,16,10,10,1,0,0,7,7,12.24,5,10
p3.16xlarge,V100-SXM2-16GB,8,16,64,488,nvlink2,150,False,3,16,25,25,1,0,0,14,14,24.48,5,10
p3dn.24xlarge,V100-SXM2-32GB,8,32,96,768,nvlink2,150,False,3,16,100,100,1,1,1676.4,19,19,31.212,5,10
p4d.24xlarge,A100-SXM4-40GB,8,40,96,1152,nvlink3,300,True,3,16,400,400,4,4,7450.6,19,19,21.957642,5,10
p5.48xlarge,H100-SXM5-80GB,8,80,192,2048,nvlink4,450,True,4,16,3200,3200,32,32,28312.2,80,80,55.04,5,10
g4dn.xlarge,T4,1,16,4,16,none,,False,3,8,5,25,1,0,116.4,0.95,3.5,0.526,5,10
g4dn.12xlarge,T4,4,16,48,192,pcie3,7.875,False,3,8,50,50,1,1,838.2,9.5,9.5,3.912,5,10
g5.xlarge,A10G,1,24,4,16,none,,False,4,8,2.5,10,1,0,232.8,0.7,3.5,1.006,5,10
g5.12xlarge,A10G,4,24,48,192,pcie4,15.75,False,4,8,40,40,1,1,3539,16,16,5.672,5,10
g5.48xlarge,A10G,8,24,192,768,pcie4,15.75,False,4,8,100,100,1,1,7078.1,19,19,16.288,5,10
g6.xlarge,L4,1,24,4,16,none,,False,4,8,2.5,10,1,0,232.8,1,5,0.8048,5,10
g6e.48xlarge,L40S,8,48,192,1536,pcie4,15.75,False,4,8,400,400,4,4,7078.1,60,60,30.13118,5,10
"""
SIXTEEN = list(csv.DictReader(EXPECTED.strip().splitlines()))


@pytest.mark.parametrize("expected", SIXTEEN, ids=lambda row: row["instance_type"])
def test_the_sixteen_common_types(expected: dict[str, str]) -> None:
    row = CATALOG.instance(expected["instance_type"])
    price = CATALOG.price(row.instance_type, "us-east-1")
    found = {name: getattr(row, name) for name in expected if name != "on_demand"}
    found["on_demand"] = price.usd_per_hour if price else None
    assert {name: _plain(value) for name, value in found.items()} == expected
    assert row.efa is (row.efa_interfaces != 0)


@pytest.mark.parametrize(
    ("name", "gpu", "total_gib"),
    [("p4d.24xlarge", "A100-SXM4-40GB", 320), ("p3.16xlarge", "V100-SXM2-16GB", 128), ("p2.16xlarge", "K80", 192),
     ("p5e.48xlarge", "H200-SXM5-141GB", 1128), ("g6e.48xlarge", "L40S", 384), ("gpu_8x_a100", "A100-SXM4-40GB", 320),
     ("a2-megagpu-16g", "A100-SXM4-40GB", 640), ("Standard_ND96isr_H100_v5", "H100-SXM5-80GB", 640)],
)  # fmt: skip
def test_gpu_count_times_memory(name: str, gpu: str, total_gib: float) -> None:
    row = CATALOG.instance(name)
    assert row.gpu_model == gpu
    assert row.gpus * (row.gpu_memory_gib or 0) == total_gib


def test_every_gpu_is_known_and_its_memory_is_that_of_the_type() -> None:
    gpus = {gpu.gpu_model: gpu for gpu in CATALOG.gpus}
    for row in TYPES:
        memory_gib = gpus[row.gpu_model].memory_gib
        assert memory_gib is not None
        assert row.gpu_memory_gib == pytest.approx(memory_gib * row.gpu_fraction, rel=0.001), row.instance_type


def test_fractions_count_no_whole_gpu() -> None:
    fractional = {row.instance_type: row for row in TYPES if row.gpu_fraction != 1}
    assert {"g6f.large", "gr6f.4xlarge", "g4-standard-6", "Standard_NV6ads_A10_v5"} <= set(fractional)
    assert all(row.gpus == 0 and 0 < row.gpu_fraction < 1 for row in fractional.values())
    assert all(row.gpus >= 1 for row in WHOLE)
    assert (fractional["g6f.large"].gpu_fraction, fractional["g6f.large"].gpu_memory_gib) == (0.125, 3)


def test_every_family_of_the_issue_is_there() -> None:
    families = {row.family for row in TYPES if row.cloud == "aws"}
    assert {"p2", "p3", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "p6e-gb200"} <= families
    assert {"g3", "g3s", "g4dn", "g5", "g5g", "g6", "g6e", "g6f", "gr6", "gr6f", "g7", "g7e"} <= families
    assert CATALOG.clouds() == (
        "aws", "azure", "coreweave", "gcp", "hyperstack", "lambda", "nebius", "oci", "runpod", "vast", "verda",
    )  # fmt: skip


def test_retired_types_are_marked() -> None:
    retired = {row.instance_type for row in TYPES if row.offered is False}
    assert {"p2.xlarge", "p2.8xlarge", "p2.16xlarge", "p3.2xlarge", "p3.8xlarge", "p3.16xlarge"} <= retired
    assert not retired & {"p3dn.24xlarge", "p4d.24xlarge", "g4dn.xlarge", "g5.xlarge"}
    assert all(not row.offered_regions for row in TYPES if row.offered is not True)


def test_names_are_unique_over_all_clouds() -> None:
    counts = Counter(row.instance_type.lower() for row in TYPES)
    assert [name for name, count in counts.items() if count > 1] == []


def test_numbers_make_sense() -> None:
    for row in TYPES:
        assert row.vcpus is None or row.vcpus > 0
        assert row.memory_gib is None or row.memory_gib > 0
        if row.network_gbps is not None and row.network_burst_gbps is not None:
            assert 0 < row.network_gbps <= row.network_burst_gbps, row.instance_type
        if row.ebs_gbps is not None and row.ebs_burst_gbps is not None:
            assert 0 < row.ebs_gbps <= row.ebs_burst_gbps, row.instance_type
        assert row.pcie_lanes in (None, 8, 16)
        if row.efa_interfaces is not None:
            assert bool(row.efa_interfaces) is row.efa, row.instance_type


def test_interconnects_follow_from_gpus_and_lanes() -> None:
    """One GPU has none; PCIe gives 0.985 GB/s a lane at generation 3, doubling; NVLink at most what the GPU has."""
    gpus = {gpu.gpu_model: gpu for gpu in CATALOG.gpus}
    for row in TYPES:
        link, gb_s, name = row.interconnect, row.interconnect_gb_s, row.instance_type
        assert (link == "none") == (row.gpus <= 1), name
        if link is not None and link.startswith("pcie") and gb_s is not None:
            lanes = row.pcie_lanes or 16
            assert gb_s == pytest.approx(0.985 * 2 ** (int(link[-1]) - 3) * lanes, rel=0.01), name
        if link is not None and link.startswith("nvlink"):
            gpu = gpus[row.gpu_model]
            assert int(link[6]) == gpu.nvlink_gen, name
            assert gb_s is not None
            assert gpu.nvlink_gb_s is not None
            assert gb_s == gpu.nvlink_gb_s or name == "p3.8xlarge", name
        assert not row.nvswitch or (link or "").startswith("nvlink"), name


@pytest.mark.parametrize(
    ("name", "gpus", "links_of_one"),
    [("p3.8xlarge", 4, {4, 5}), ("p3.16xlarge", 8, {6}), ("p3dn.24xlarge", 8, {6}),
     ("Standard_NC96ads_A100_v4", 4, {12})],
)  # fmt: skip
def test_link_pairs_of_machines_without_a_switch(name: str, gpus: int, links_of_one: set[int]) -> None:
    row = CATALOG.instance(name)
    links: Counter[int] = Counter()
    for pair in row.link_pairs:
        assert 0 <= pair.gpu_a < pair.gpu_b < gpus
        links.update({pair.gpu_a: pair.links, pair.gpu_b: pair.links})
    assert set(links) == set(range(gpus))
    assert set(links.values()) == links_of_one
    assert len({(pair.gpu_a, pair.gpu_b) for pair in row.link_pairs}) == len(row.link_pairs)
    gpu = CATALOG.gpu(row.gpu_model)
    assert gpu.nvlink_gb_s is not None
    assert max(links_of_one) * 25 <= gpu.nvlink_gb_s  # an NVLink of generation 2 or 3 moves 25 GB/s each way


def test_the_cube_mesh_joins_each_gpu_to_four_others() -> None:
    pairs = CATALOG.instance("p3.16xlarge").link_pairs
    neighbours = Counter(gpu for pair in pairs for gpu in (pair.gpu_a, pair.gpu_b))
    assert set(neighbours.values()) == {4}
    assert {pair for pair in pairs if pair.gpu_b < 4} == set(CATALOG.instance("p3.8xlarge").link_pairs)


def _size(row: InstanceType) -> float | None:
    """Order within an AWS family: large < xlarge < 2xlarge ...; a metal machine is the largest."""
    name = row.instance_type.partition(".")[2]
    if name == "metal":
        return math.inf
    match = re.fullmatch(r"(\d*)x?large", name)
    return None if match is None else float(match.group(1) or (1 if "x" in name else 0.5))


def test_a_bigger_size_of_a_family_has_not_less() -> None:
    families = defaultdict(list)
    for row in TYPES:
        if row.cloud == "aws":
            families[row.family].append(row)
    compared = 0
    for rows in families.values():
        for small, big in pairwise(sorted(rows, key=lambda row: _size(row) or 0)):
            compared += 1
            assert _size(big) is not None
            for name in ("vcpus", "memory_gib"):
                assert getattr(small, name) <= getattr(big, name), (small.instance_type, big.instance_type, name)
            assert small.gpu_fraction <= big.gpu_fraction
            # the sizes of one GPU go on growing past the first of several
            if big.gpus < small.gpus:
                assert big.gpus == 1, (small.instance_type, big.instance_type)
    assert compared > 40


def test_machines_with_several_gpus_grow_with_them() -> None:
    families = defaultdict(list)
    for row in WHOLE:
        families[row.cloud, row.family].append(row)
    for rows in families.values():
        for small, big in pairwise(sorted(rows, key=lambda row: (row.gpus, row.vcpus or 0))):
            if small.gpus < big.gpus and small.gpus > 1:
                assert (small.vcpus or 0) <= (big.vcpus or 0), (small.instance_type, big.instance_type)
                assert (small.memory_gib or 0) <= (big.memory_gib or 0), (small.instance_type, big.instance_type)
                assert (small.network_gbps or 0) <= (big.network_gbps or math.inf)


@pytest.mark.parametrize("answer", EC2_API, ids=lambda row: row["instance_type"])
def test_the_api_agrees_or_the_disagreement_is_listed(answer: dict[str, str]) -> None:
    row = CATALOG.instance(answer["instance_type"])
    tolerance = {"gpu_memory_gib": 0.01}
    differing = set()
    for name in ("vcpus", "memory_gib", "gpus", "gpu_memory_gib", "efa_interfaces", "local_storage_gib", "ebs_gbps",
                 "ebs_burst_gbps"):  # fmt: skip
        ours = getattr(row, name)
        if answer[name] and (
            ours is None or not math.isclose(ours, float(answer[name]), rel_tol=tolerance.get(name, 1e-6))
        ):
            differing.add(name)
    if not row.network_gbps or not math.isclose(row.network_gbps, _announced_gbps(answer), rel_tol=1e-6):
        differing.add("network_performance")
    if answer["cards_gbps"] and row.network_gbps != float(answer["cards_gbps"]):
        differing.add("network_gbps")
    assert str(row.ena_express).lower() == answer["ena_express"]
    listed = {(d.subject, d.field) for d in CATALOG.disagreements}
    unlisted = {n for n in differing if not {(row.instance_type, n), (row.gpu_model, n)} & listed}
    if row.gpu_fraction < 1:
        unlisted -= {"gpu_memory_gib"}  # a share of a GPU whose memory the API counts otherwise
        assert (row.gpu_model, "gpu_memory_gib") in listed
    assert unlisted == set()


def test_listed_sums_over_network_cards_are_still_wrong() -> None:
    """A disagreement that is settled must leave the list."""
    api = {answer["instance_type"]: answer for answer in EC2_API}
    listed = [d for d in CATALOG.disagreements if d.field == "network_gbps" and "(NetworkCards)" in d.other_source]
    assert len(listed) == 10
    for d in listed:
        assert float(api[d.subject]["cards_gbps"]) == float(d.other)
        assert CATALOG.instance(d.subject).network_gbps == float(d.kept)


def _announced_gbps(answer: dict[str, str]) -> float:
    """The figure of NetworkPerformance; where it is a word or a burst, the baseline of the only card."""
    text = answer["network_performance"]
    match = re.fullmatch(r"(?:(\d+)x )?(\d+(?:\.\d+)?) Gigabit", text)
    return float(match.group(1) or 1) * float(match.group(2)) if match else float(answer["cards_gbps"])


def _plain(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.10g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
