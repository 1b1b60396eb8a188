"""One machine with everything known, of a catalogue made by hand."""

from __future__ import annotations

import json
from dataclasses import replace

from ddlprof.instance_catalog import (
    Catalog,
    Disagreement,
    FlowLimit,
    Gpu,
    InstanceType,
    LinkFact,
    LinkPair,
    Price,
    Source,
)
from ddlprof.report.machines.show import as_json, as_text, build_page

MACHINE = InstanceType(
    "aws", "p3.8xlarge", "p3", "V100", 4, 1.0, gpu_memory_gib=16.0, vcpus=32, memory_gib=244.0, cpu_arch="x86_64",
    interconnect="nvlink2", interconnect_gb_s=100.0, interconnect_basis="vendor text", nvswitch=False, pcie_gen=3,
    pcie_lanes=16, pcie_basis="lanes assumed", network_gbps=10.0, network_burst_gbps=10.0, network_cards=1, efa=False,
    efa_interfaces=0, local_storage_gib=0.0, ebs_gbps=7.0, ebs_burst_gbps=7.0, offered=False,
    offered_regions=("us-east-1",), spec_as_of="2026-04-01", source="dump", notes="a note; another",
    flow_gbps=5.0, flow_placement_group_gbps=10.0, link_pairs=(LinkPair(0, 1, 1), LinkPair(0, 3, 2)),
)  # fmt: skip
V100 = Gpu("V100", architecture="Volta", compute_capability="7.0", memory_bandwidth_gb_s=900.0, fp32_tflops=15.7,
           fp16_tensor_tflops=125.0, sm_count=80, confidence="high", source="datasheet")  # fmt: skip
CATALOG = Catalog(
    instances=(MACHINE,),
    gpus=(V100,),
    prices=(
        Price("aws", "us-west-2", "p3.8xlarge", "on_demand", 12.24, "", "parity", "list"),
        Price("aws", "us-east-1", "p3.8xlarge", "spot", 3.2287, "2026-08-08", "read", "spot-list"),
        Price("aws", "us-east-1", "p3.8xlarge", "on_demand", 12.24, "2026-07-20", "read", "list"),
        Price("aws", "us-east-1", "p3.2xlarge", "on_demand", 3.06, "2026-07-20", "read", "list"),
    ),
    links=(
        LinkFact("p3.8xlarge", "allreduce_intra_gb_s", 1.5, "GB/s", "2026-01-01", "runs/old"),
        LinkFact("p3.8xlarge", "flow_gbps", 4.9, "Gbit/s", "2026-02-01", "runs/new", "iperf"),
        LinkFact("p3.2xlarge", "flow_gbps", 4.8, "Gbit/s", "2026-02-01", "runs/new"),
    ),
    flow_limits=(
        FlowLimit("aws", "tcp", False, "docs", 5.0, "one flow is one 5-tuple"),
        FlowLimit("aws", "efa", True, "docs"),
        FlowLimit("gcp", "tcp", False, "docs", 3.0),
    ),
    sources=(
        Source("dump", "what an API said", "example.org/dump", "2026-04-01", "MIT"),
        Source("unused", "nothing here", "example.org/unused", "", "MIT"),
    ),
    disagreements=(Disagreement("p3.8xlarge", "network_gbps", "10", "dump", "5", "cards", "sums are unreliable"),),
)

TEXT = """\
p3.8xlarge · aws · family p3 · retired
GPUs          4 x V100, 16 GiB each
              Volta, compute capability 7.0, 80 SMs, 900 GB/s to its memory
              dense peaks in TFLOPS: fp32 15.7, tf32 -, fp16 -, fp16 tensor 125, bf16 -
              its figures: confidence high, from datasheet
Between GPUs  nvlink2, 100 GB/s of one GPU in one direction, at most (vendor text)
              NVLinks of pairs of GPUs: 0-1: 1, 0-3: 2; other pairs have none
GPU to host   PCIe 3 x16 (lanes assumed)
Host          32 vCPUs, 244 GiB of memory (x86_64)
Network       10 Gbit/s sustained, no EFA
              one TCP flow: 5 Gbit/s, 10 Gbit/s within a cluster placement group
Flow limits   TCP: 5 Gbit/s (one flow is one 5-tuple), from docs
Storage       no local disks, 7 Gbit/s to network storage
Seen on offer us-east-1
Facts         as of 2026-04-01, from dump

Measured by you
  what                  value  unit    measured    source    notes
  flow_gbps               4.9  Gbit/s  2026-02-01  runs/new  iperf
  allreduce_intra_gb_s    1.5  GB/s    2026-01-01  runs/old

Prices
  region     pricing      USD/h  as of       basis   from
  us-east-1  on_demand   12.240  2026-07-20  read    list
  us-east-1  spot         3.229  2026-08-08  read    spot-list
  us-west-2  on_demand  ~12.240  -           parity  list

Notes         a note
              another
Disagreement  network_gbps of p3.8xlarge is 10 (dump), not 5 (cards): sums are unreliable
Sources       dump: what an API said, example.org/dump, 2026-04-01
"""


def text_of(machine: InstanceType, catalog: Catalog = CATALOG, width: int = 100) -> str:
    return as_text(build_page(catalog, machine), width)


def test_the_whole_page() -> None:
    assert text_of(MACHINE) == TEXT


def test_paragraphs_fit_the_width() -> None:
    text = text_of(MACHINE, width=50).split("\n\n")
    assert all(len(line) <= 50 for block in (text[0], text[-1]) for line in block.splitlines())


def test_what_is_not_known_is_said() -> None:
    bare = InstanceType("gcp", "new-1g", "new", "X1", 1, 1.0)
    text = text_of(bare, Catalog(instances=(bare,), gpus=(V100,), prices=()))
    assert "nothing is known of this GPU" in text
    assert "unknown GiB each" in text
    assert "Between GPUs  not known" in text
    assert "unknown Gbit/s sustained" in text
    assert "no limit of a single flow is known" in text
    assert "as of no known date, from no known source" in text
    assert "Prices: none is known" in text
    assert "None" not in text


def test_a_machine_whose_pairs_are_all_linked() -> None:
    pairs = tuple(LinkPair(a, b, 1) for a in range(4) for b in range(a + 1, 4))
    assert "0-1: 1, 0-2: 1, 0-3: 1, 1-2: 1, 1-3: 1, 2-3: 1\nGPU to host" in text_of(replace(MACHINE, link_pairs=pairs))


def test_transports_of_the_machine_only() -> None:
    text = text_of(replace(MACHINE, efa=True, efa_interfaces=1))
    assert "EFA with 1 interface\n" in text
    assert "EFA in a cluster placement group: none documented, from docs\n" in text


def test_json_has_everything() -> None:
    page = json.loads(as_json(build_page(CATALOG, MACHINE)))
    assert page["instance"]["link_pairs"][1] == {"gpu_a": 0, "gpu_b": 3, "links": 2}
    assert page["gpu"]["tf32_tflops"] is None
    assert [price["region"] for price in page["prices"]] == ["us-east-1", "us-east-1", "us-west-2"]
    assert [fact["value"] for fact in page["measured"]] == [4.9, 1.5]
    assert [limit["transport"] for limit in page["flow_limits"]] == ["tcp"]
    assert [source["source"] for source in page["sources"]] == ["dump"]
    assert page["disagreements"][0]["kept"] == "10"
