"""Which GPU a name means: what libraries, clouds and published measurements write."""

from __future__ import annotations

import pytest

from ddlprof.instance_catalog import CatalogError, Gpu, load
from ddlprof.instance_catalog.names import parse, resolve

GPUS = load(None).gpus
MEANT = {
    "T4": "T4",
    "T4-16GB": "T4",
    "Tesla T4": "T4",
    "nvidia tesla t4": "T4",
    "NVIDIA T4G": "T4G",
    "NVIDIA A100-SXM4-40GB": "A100-SXM4-40GB",
    "NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB",
    "NVIDIA A100-PCIE-40GB": "A100-PCIE-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIE-80GB",
    "NVIDIA_A100_80GB_PCIe": "A100-PCIE-80GB",
    "A100-80GB": "A100-SXM4-80GB",
    "A100-80G": "A100-SXM4-80GB",
    "a100 80 gb": "A100-SXM4-80GB",
    "A100-80GB?": "A100-SXM4-80GB",
    "A100": "A100-SXM4-40GB",
    "V100": "V100-SXM2-16GB",
    "V100-32GB": "V100-SXM2-32GB",
    "Tesla V100-SXM2-16GB": "V100-SXM2-16GB",
    "Tesla V100-SXM3-32GB": "V100-SXM2-32GB",
    "Tesla_V100-PCIE-32GB": "V100-PCIE-32GB",
    "P100": "P100-PCIE-16GB",
    "P100-12GB/16GB?": "P100-PCIE-16GB",
    "Tesla P100-SXM2-16GB": "P100-SXM2-16GB",
    "H100": "H100-SXM5-80GB",
    "NVIDIA H100 80GB HBM3": "H100-SXM5-80GB",
    "H100-96GB-SXM": "H100-SXM5-96GB",
    "NVIDIA H100 PCIe": "H100-PCIE-80GB",
    "NVIDIA H100 NVL": "H100-NVL-94GB",
    "NVIDIA GH200 480GB": "GH200-96GB",
    "NVIDIA B300 SXM6 AC": "B300",
    "B200-192GB": "B200",
    "NVIDIA A10": "A10",
    "NVIDIA A10G": "A10G",
    "NVIDIA L4": "L4",
    "NVIDIA L40S": "L40S",
    "GRID K520": "K520",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI300X OAM": "MI300X",
    "AMD Instinct MI325X 256GB HBM3E DLC": "MI325X",
    "AMD Instinct MI250X": "MI250X",
    "mi355x": "MI355X",
    "NVIDIA GeForce RTX 2080 Ti": "RTX-2080Ti",
    "RTX2080Ti-11GB(inferred)": "RTX-2080Ti",
    "NVIDIA GeForce GTX 1080 Ti": "GTX-1080Ti",
    "TitanV-12GB": "TITAN-V",
    "RTXA6000-48GB": "RTX-A6000",
    "Quadro RTX 6000": "RTX-6000-Turing",
    "NVIDIA RTX 6000 Ada Generation": "RTX-6000-Ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000-Blackwell-SE",
}


@pytest.mark.parametrize(("name", "model"), MEANT.items())
def test_a_name_means_one_gpu(name: str, model: str) -> None:
    assert resolve(name, GPUS).gpu_model == model


@pytest.mark.parametrize(
    "name", ["A100-SXM-64GB", "T44", "A100 MIG 1g.5gb", "MI300A", "MI300X-128GB", "", "cpu", "16GB"]
)
def test_what_is_not_known_is_an_error(name: str) -> None:
    with pytest.raises(CatalogError, match="unknown GPU") as caught:
        resolve(name, GPUS)
    assert "\n" not in str(caught.value)


def test_the_first_of_the_table_is_the_default() -> None:
    table = [Gpu("X9-SXM-40GB", memory_gib=40), Gpu("X9-PCIE-80GB", memory_gib=80)]
    assert resolve("X9", table) is table[0]
    assert resolve("X9", table[::-1]) is table[1]


def test_the_parts_of_a_name() -> None:
    assert parse("NVIDIA_H100_80GB_HBM3") == ("h100", (80.0,), "")
    assert parse("Tesla V100-SXM2-16GB") == ("v100", (16.0,), "sxm")
    assert parse("P100-12GB/16GB?") == ("p100", (12.0, 16.0), "")
    assert parse("NVIDIA T4G") == ("t4g", (), "")
