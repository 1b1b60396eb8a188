"""A probe as a page, as a file, and as facts of the catalogue."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ddlprof.base.reading import ReadingError
from ddlprof.extensions.probe.model import Figure, Probed
from ddlprof.extensions.probe.report import facts_of, from_json, render
from ddlprof.instance_catalog import CatalogError, load
from ddlprof.instance_catalog.overlay import add_links, add_reached
from ddlprof.report.json_csv import json_of
from ddlprof.report.machines.show import as_text, build_page

PROBED = Probed(
    device="NVIDIA A100-SXM4-40GB",
    is_gpu=True,
    figures=(
        Figure("products", "fp32_tflops", "fp32 8192 x 8192 by 8192 x 8192", 18.5, "TFLOP/s", "18.6 at first"),
        Figure("products", "bf16_tflops", "bf16 8192 x 8192 by 8192 x 8192", 249.6, "TFLOP/s", "280 at first"),
        Figure("products", "bf16_flat_tflops", "bf16 8192 x 1024 by 1024 x 8192", 200.0, "TFLOP/s"),
        Figure("memory", "memory_gb_s", "sum of two arrays of 1.1 GB", 1400.0, "GB/s"),
        Figure("copies", "host_to_device_gb_s", "host to device, pinned, 0.27 GB", 24.0, "GB/s"),
        Figure("launches", "launch_us", "one small operator after the other", 4.2, "us"),
        Figure("collectives", "nccl_allreduce_intra_gb_s", "nccl all-reduce of 256 MiB, 8 ranks", 230.0, "GB/s"),
    ),
    measured_at="2026-11-22T10:00:00+00:00",
    seconds=31.5,
    memory_gib=39.4,
    instance_type="p4d.24xlarge",
    host="node-1",
    torch="2.13.0",
    ranks=8,
    clock_mhz=1320.4,
    power_w=398.0,
    missing=("products in fp8: no such function",),
)
CATALOG = load(None)
NEGATIVE = asdict(Figure("memory", "memory_gb_s", "a", -1.0, "GB/s"))


def test_figures_go_to_the_gpu_and_links_to_the_machine() -> None:
    facts = facts_of(PROBED, CATALOG)
    reached = facts.reached
    assert (reached.gpu_model, reached.instance_type) == ("A100-SXM4-40GB", "p4d.24xlarge")
    assert (reached.bf16_tflops, reached.fp32_tflops, reached.fp8_tflops) == (249.6, 18.5, None)
    assert (reached.memory_gb_s, reached.launch_us) == (1400.0, 4.2)
    assert (reached.clock_mhz, reached.power_w, reached.measured_at[:10]) == (1320.4, 398.0, "2026-11-22")
    assert {(link.machine, link.what, link.value) for link in facts.links} == {
        ("p4d.24xlarge", "host_to_device_gb_s", 24.0), ("p4d.24xlarge", "nccl_allreduce_intra_gb_s", 230.0),
    }  # fmt: skip


def test_memory_tells_variants_of_a_gpu_apart() -> None:
    larger = replace(PROBED, device="NVIDIA A100-SXM4-80GB", memory_gib=79.2, instance_type="p4de.24xlarge")
    assert facts_of(larger, CATALOG).reached.gpu_model == "A100-SXM4-80GB"


def test_the_type_named_must_have_the_gpu_that_was_measured() -> None:
    with pytest.raises(CatalogError, match=r"p3\.8xlarge has V100-SXM2-16GB, and a A100-SXM4-40GB was measured"):
        facts_of(replace(PROBED, instance_type="p3.8xlarge"), CATALOG)


def test_a_type_that_the_catalogue_lacks_is_kept_as_it_is() -> None:
    """Firmware tells types without GPUs, and newer ones, too."""
    facts = facts_of(replace(PROBED, instance_type="c7i.metal"), CATALOG)
    assert facts.reached.instance_type == "c7i.metal"
    assert {link.machine for link in facts.links} == {"c7i.metal"}


def test_a_gpu_that_nobody_knows_and_a_processor_keep_their_names() -> None:
    unknown = facts_of(replace(PROBED, device="NVIDIA Z9000", instance_type=None), CATALOG)
    assert (unknown.gpu, unknown.reached.gpu_model) == (None, "NVIDIA Z9000")
    assert {link.machine for link in unknown.links} == {"node-1"}
    processor = facts_of(replace(PROBED, device="T4", is_gpu=False, instance_type=None), CATALOG)
    assert processor.gpu is None


def test_the_page_has_shares_of_the_data_sheet_and_what_is_missing() -> None:
    page = render(PROBED, facts_of(PROBED, CATALOG), "/catalog")
    head = page.splitlines()[0]
    assert head == "ddlprof  probe NVIDIA A100-SXM4-40GB · 32 s · torch 2.13.0 · 1320 MHz · 398 W"
    words = " ".join(page.split())
    assert "250 TFLOP/s 80 % of the data sheet, 280 at first" in words
    assert "1,400 GB/s 90 % of the data sheet" in words
    assert "Missing products in fp8: no such function" in words
    assert "predictions for A100-SXM4-40GB rest on these figures from now on" in words
    assert "Not kept the catalogue is as it was" in " ".join(render(PROBED, facts_of(PROBED, CATALOG), None).split())


def test_no_share_is_told_of_a_peak_that_is_not_known() -> None:
    probed = replace(PROBED, figures=(Figure("products", "fp16_tflops", "fp16", 250.0, "TFLOP/s"),))
    facts = facts_of(probed, CATALOG)
    assert facts.gpu is not None
    unknown = replace(facts, gpu=replace(facts.gpu, fp16_tensor_tflops=None, bf16_tflops=None))
    assert "80 % of the data sheet" in render(probed, facts, None)
    assert "of the data sheet" not in render(probed, unknown, None)


def test_a_file_is_read_as_it_was_written() -> None:
    assert from_json(json_of(PROBED)) == PROBED


@pytest.mark.parametrize(
    ("change", "what"),
    [({"figures": "many"}, "figures"), ({"device": None}, "device"), ({"figures": [NEGATIVE]}, "a positive number")],
)  # fmt: skip
def test_a_damaged_file_names_the_field(change: dict[str, object], what: str) -> None:
    with pytest.raises(ReadingError, match=what):
        from_json(json.dumps({**json.loads(json_of(PROBED)), **change}))


def test_the_page_of_a_type_shows_its_probe(tmp_path: Path) -> None:
    facts = facts_of(PROBED, CATALOG)
    add_reached(tmp_path, [facts.reached])
    add_links(tmp_path, facts.links)
    catalog = load(tmp_path)
    text = " ".join(as_text(build_page(catalog, catalog.instance("p4d.24xlarge")), 100).split())
    assert (
        "Reached products in TFLOPS: fp32 18.5, bf16 250; memory 1,400 GB/s; 4.2 us from one small operator to the next"
        in text
    )
    assert "at 1320 MHz; 398 W; ddlprof probe on node-1 (p4d.24xlarge), 2026-11-22T10:00:00+00:00" in text
    assert "nccl_allreduce_intra_gb_s 230 GB/s" in text
    other = as_text(build_page(catalog, catalog.instance("g4dn.xlarge")), 100)
    assert "Reached" not in other


def test_half_a_probe_is_nothing_that_predictions_may_rest_on() -> None:
    half = replace(PROBED, figures=PROBED.figures[1:], seconds=4.0)
    facts = facts_of(half, CATALOG)
    assert facts_of(PROBED, CATALOG).to_keep == (facts_of(PROBED, CATALOG).reached,)
    assert facts.to_keep == ()
    words = " ".join(render(half, facts, "/catalog").split())
    assert "links only: without products, memory and launches no prediction can rest on it" in words
    assert "clocks may not have settled" in words
