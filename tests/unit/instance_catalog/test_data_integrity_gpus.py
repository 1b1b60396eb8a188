"""The embedded GPU specifications, sources and rules as data."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from ddlprof import instance_catalog
from ddlprof.instance_catalog import load
from ddlprof.instance_catalog.names import parse

CATALOG = load(None)
DATA = Path(instance_catalog.__file__).parent / "data"
CLOCK_NOT_PUBLISHED = {"B200", "B300", "GB200", "GB300", "H20", "RTX-PRO-6000-Blackwell-SE"}
UNDATED = {"p6e-gb200.36xlarge", "a3-ultragpu-8g", "a4-highgpu-8g", "Standard_ND96isr_MI300X_v5"}
"""Types without a date, overheads those of clouds whose lists have none."""
DATED_CLOUDS = {"aws", "gcp", "azure"}
PACKED = {"CDNA 3": 2, "CDNA 4": 2}
"""AMD's architectures whose peak in fp32 is that of packed instructions: two multiply-adds a core and clock."""
MATRIX_OPERATIONS = {"CDNA 2": 512, "CDNA 3": 1024, "CDNA 4": 2048}
"""Dense 16-bit multiply-adds of a compute unit in a clock."""
AMD = tuple(gpu for gpu in CATALOG.gpus if (gpu.architecture or "").startswith("CDNA"))
NVIDIA = tuple(gpu for gpu in CATALOG.gpus if gpu not in AMD)
SOURCE_NAMES = frozenset(source.source for source in CATALOG.sources)


def test_fp32_is_cores_times_clock() -> None:
    checked = 0
    for gpu in CATALOG.gpus:
        if gpu.fp32_cores and gpu.boost_mhz:
            operations = 2 * PACKED.get(gpu.architecture or "", 1) * gpu.fp32_cores
            assert gpu.fp32_tflops == pytest.approx(operations * gpu.boost_mhz / 1e6, rel=0.02), gpu.gpu_model
            checked += 1
        else:
            assert gpu.gpu_model in CLOCK_NOT_PUBLISHED
    assert checked > 45


def test_peaks_are_in_order() -> None:
    for gpu in CATALOG.gpus:
        name = gpu.gpu_model
        if gpu.tf32_tflops and gpu.fp16_tensor_tflops:
            assert gpu.tf32_tflops == pytest.approx(gpu.fp16_tensor_tflops / 2, rel=0.06), name
        if gpu.fp16_tensor_tflops and gpu.fp32_tflops:
            assert gpu.fp16_tensor_tflops > gpu.fp32_tflops, name
        if gpu.bf16_tflops is not None:
            assert gpu.bf16_tflops == gpu.fp16_tensor_tflops, name
            assert gpu in AMD or float(gpu.compute_capability or 0) >= 8, name
        assert (gpu.nvlink_gen is None) == (gpu.nvlink_gb_s is None or gpu in AMD), name


def test_every_gpu_with_tensor_cores_has_their_peaks() -> None:
    """A GPU without any peak is never predicted."""
    for gpu in NVIDIA:
        capability, name = float(gpu.compute_capability or 0), gpu.gpu_model
        assert gpu.fp32_tflops is not None, name
        assert (gpu.fp16_tensor_tflops is not None) == (capability >= 7), name
        assert (gpu.bf16_tflops is not None) == (gpu.tf32_tflops is not None) == (capability >= 8), name


def test_nothing_is_published_as_dense_that_is_sparse() -> None:
    """Dense tensor rates a SM and clock: 512 multiply-adds on Volta and Turing, 1024 on A100, 2048 on Hopper."""
    for gpu in NVIDIA:
        if gpu.fp16_tensor_tflops and gpu.sm_count and gpu.boost_mhz:
            a_cycle = gpu.fp16_tensor_tflops * 1e12 / (2 * gpu.sm_count * gpu.boost_mhz * 1e6)
            limit = {"7.0": 512, "7.5": 512, "8.0": 1024, "8.6": 512, "8.9": 512, "9.0": 2048, "12.0": 512}
            assert a_cycle <= 1.05 * limit[gpu.compute_capability or ""], gpu.gpu_model


def test_what_data_sheets_of_amd_say_fits_together() -> None:
    """No compute capability, 64 cores a compute unit, and dense peaks of the matrix cores."""
    assert {gpu.gpu_model for gpu in AMD} == {"MI250X", "MI300X", "MI325X", "MI350X", "MI355X"}
    for gpu in AMD:
        name = gpu.gpu_model
        assert gpu.compute_capability is None, name
        assert gpu.sm_count is not None, name
        assert gpu.boost_mhz is not None, name
        assert gpu.fp32_cores == 64 * gpu.sm_count, name
        dense = 2 * MATRIX_OPERATIONS[gpu.architecture or ""] * gpu.sm_count * gpu.boost_mhz / 1e6
        assert gpu.bf16_tflops == pytest.approx(dense, rel=0.001), name
        assert (gpu.tf32_tflops is None) == (gpu.architecture != "CDNA 3"), name
        assert gpu.nvlink_gb_s in (None, 7 * 64, 7 * 76.8), name  # one link to each of seven others


def test_aliases_and_names_mean_one_gpu_each() -> None:
    spelled = Counter(
        "".join(c for c in name.lower() if c.isalnum())
        for gpu in CATALOG.gpus
        for name in (gpu.gpu_model, *gpu.aliases)
    )
    assert [name for name, count in spelled.items() if count > 1] == []
    for gpu in CATALOG.gpus:
        for name in (gpu.gpu_model, *gpu.aliases):
            assert CATALOG.gpu(name) is gpu
    parts = Counter((parse(g.gpu_model).base, parse(g.gpu_model).form, g.memory_gib) for g in CATALOG.gpus)
    assert max(parts.values()) == 1


def test_confidence_and_source_are_always_said() -> None:
    assert {gpu.confidence for gpu in CATALOG.gpus} == {"high", "medium", "low", "recalled"}
    assert all(gpu.source for gpu in CATALOG.gpus)
    assert all("recalled" in gpu.source for gpu in CATALOG.gpus if gpu.confidence == "recalled")


def test_every_source_that_is_named_is_described() -> None:
    named = {source for row in CATALOG.instances for source in row.source.split(";")}
    named |= {source for row in CATALOG.prices for source in row.source.split(";")}
    named |= {source for row in CATALOG.flow_limits for source in row.source.split(";")}
    lines = (DATA / "gpu_links.csv").read_text(encoding="utf-8").splitlines()[1:]
    named |= {source for line in lines for source in line.rsplit(",", 1)[1].split(";")}
    assert named == SOURCE_NAMES
    assert all(row.source for row in CATALOG.instances)
    assert all(row.source for row in CATALOG.prices)


def test_dates_of_sources_and_specs_are_iso_dates_of_the_past() -> None:
    dates = [source.as_of for source in CATALOG.sources] + [row.spec_as_of for row in CATALOG.instances]
    assert all(date(2017, 1, 1) <= date.fromisoformat(text) <= date(2026, 11, 30) for text in dates if text)
    undated = {row.instance_type for row in CATALOG.instances if not row.spec_as_of}
    assert undated == UNDATED | {row.instance_type for row in CATALOG.instances if row.cloud not in DATED_CLOUDS}


def test_the_licence_of_every_repository_is_said() -> None:
    assert all(source.licence for source in CATALOG.sources if source.location.startswith("github.com")
               and "topology" not in source.source and not source.source.startswith("huvm"))  # fmt: skip


def test_limits_of_a_flow() -> None:
    limits = {(row.cloud, row.transport, row.placement_group): row.gbps for row in CATALOG.flow_limits}
    assert limits["aws", "tcp", False] == 5
    assert limits["aws", "tcp", True] == 10
    assert limits["aws", "ena_express", False] == 25
    assert limits["aws", "efa", True] is None
    assert {cloud for cloud, _, _ in limits} == {"aws"}, "no limit of another cloud is documented"


def test_disagreements_are_about_something_we_have() -> None:
    subjects = {row.instance_type for row in CATALOG.instances} | {gpu.gpu_model for gpu in CATALOG.gpus}
    for d in CATALOG.disagreements:
        assert d.subject in subjects
        assert d.kept != d.other
        assert d.kept_source
        assert d.other_source


def test_what_disagreements_say_is_kept_is_what_we_say() -> None:
    gpus = {gpu.gpu_model: gpu for gpu in CATALOG.gpus}
    types = {row.instance_type: row for row in CATALOG.instances}
    checked = 0
    for d in CATALOG.disagreements:
        record = gpus.get(d.subject) or types[d.subject]
        kept = getattr(record, d.field if d.subject in types else d.field.replace("gpu_memory", "memory"), None)
        if isinstance(kept, int | float | str):
            assert d.kept == (f"{kept:g}" if isinstance(kept, int | float) else kept), d
            checked += 1
        elif d.field == "usd_per_hour":
            price = CATALOG.price(d.subject)
            assert price is not None
            assert d.kept == f"{price.usd_per_hour:.10g}", d
            checked += 1
    assert checked > 45


def test_files_are_plain_text_with_one_line_a_row() -> None:
    for path in DATA.glob("*.csv"):
        text = path.read_bytes()
        assert b"\r" not in text
        assert text.endswith(b"\n")
        columns = text.splitlines()[0].decode().split(",")
        assert len(columns) == len(set(columns))
