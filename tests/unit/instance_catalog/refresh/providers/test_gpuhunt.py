"""gpuhunt's published catalogue, as a server on this machine gives it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ddlprof.instance_catalog import CatalogError, Price, load
from ddlprof.instance_catalog.overlay import read_overlay, write_prices
from ddlprof.instance_catalog.refresh import RefreshReport, refresh_published
from ddlprof.instance_catalog.refresh.providers import base, gpuhunt
from tests.unit.instance_catalog.refresh.gpuhunt_server import CLOUDS, VERSION, published, row, serving

NOW = datetime(2026, 8, 21, tzinfo=timezone.utc)


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    return tmp_path / "overlay"


def refreshed(
    overlay: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, bytes] | None = None, **more: object
) -> RefreshReport:
    with serving(published() if files is None else files) as url:
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", url)
        return refresh_published(overlay, now=NOW, **more)  # type: ignore[arg-type]


def prices(overlay: Path) -> dict[tuple[str, str, str, str], float]:
    return {(p.cloud, p.region, p.instance_type, p.pricing): p.usd_per_hour for p in read_overlay(overlay).prices}


def only(*rows: Mapping[str, str], cloud: str = "aws") -> dict[str, bytes]:
    return published({cloud: rows})


def test_names_of_machines_and_regions_become_ours(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = refreshed(overlay, monkeypatch)
    assert report.ok
    assert prices(overlay) == {
        ("aws", "us-east-1", "p5.48xlarge", "on_demand"): 55.04,
        ("aws", "us-east-1", "p5.48xlarge", "spot"): 22.0,
        ("azure", "eastus", "Standard_ND96isr_H100_v5", "on_demand"): 98.32,
        ("cloudrift", "any", "rtx49-8c-nr.1", "on_demand"): 0.39,
        ("gcp", "us-central1", "n1-standard-8+1xt4", "on_demand"): 0.71,
        ("lambda", "any", "gpu_1x_gh200", "on_demand"): 1.49,
        ("lambda", "any", "gpu_8x_h100_sxm5", "on_demand"): 23.92,
        ("nebius", "any", "gpu-h100-sxm_8gpu-128vcpu-1600gb", "on_demand"): 23.6,
        ("oci", "any", "BM.GPU.H100.8", "on_demand"): 80.0,
        ("runpod", "any", "1x_H100-SXM_SECURE", "on_demand"): 2.69,
        ("runpod", "any", "4x_A100-80GB-SXM_SECURE", "on_demand"): 5.96,
        ("verda", "any", "8H100.80S.176V", "on_demand"): 18.32,
    }
    assert report.left_out == ("gcp n1-highmem-8+1xt4",)
    assert {outcome.cloud: outcome.rows for outcome in report.outcomes}["runpod"] == 2


def test_every_price_has_its_source_and_the_day_it_was_published(
    overlay: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed(overlay, monkeypatch)
    assert {(p.as_of, p.basis, p.source) for p in read_overlay(overlay).prices} == {
        ("2026-08-20", "api", f"gpuhunt {VERSION}")
    }


def test_a_day_that_has_not_come_yet_is_today(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed(overlay, monkeypatch, published(version="20991231-1"))
    assert {p.as_of for p in read_overlay(overlay).prices} == {"2026-08-21"}


def test_facts_of_known_machines_stay_ours(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed(overlay, monkeypatch)
    before, after = load(None), load(overlay)
    assert [after.instance(each.instance_type, each.cloud) for each in before.instances] == list(before.instances)


def test_unknown_machines_are_rows_if_their_gpu_is_clear(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = refreshed(overlay, monkeypatch)
    assert report.added == ("cloudrift rtx49-8c-nr.1", "lambda gpu_1x_gh200")
    added = load(overlay).instance("gpu_1x_gh200")
    assert (added.gpu_model, added.gpus, added.gpu_memory_gib) == ("GH200-96GB", 1, 96)
    assert (added.memory_gib, added.cpu_arch, added.network_gbps) == (464, "arm64", None)
    assert "links and network are not known" in added.notes


@pytest.mark.parametrize(
    ("gpu", "memory", "name", "is_added"),
    [("L40S", 48.0, "x9.large", True), ("H100", 80.0, "x9.large", False), ("H100", 80.0, "x9-h100-pcie", True),
     ("L40S", 24.0, "x9.large", False), ("R100", 288.0, "x9.large", False), ("L40S", 48.0, "../x9\x1b[2J", False)],
    ids=["one", "SXM or PCIe", "named PCIe", "another memory", "no such GPU", "no name"],
)  # fmt: skip
def test_a_gpu_is_clear_where_one_of_ours_fits(
    overlay: Path, monkeypatch: pytest.MonkeyPatch, gpu: str, memory: float, name: str, is_added: bool
) -> None:
    known = row("g6.xlarge", "us-east-1", 0.9, "L4", 24.0)
    report = refreshed(overlay, monkeypatch, only(known, row(name, "us-east-1", 2.0, gpu, memory)), clouds=["aws"])
    assert (report.added, report.left_out) == (((f"aws {name}",), ()) if is_added else ((), (f"aws {name}",)))


@pytest.mark.parametrize("other", [{"gpu_count": 2}, {"gpu": "T4"}], ids=str)
def test_a_known_name_with_other_gpus_has_no_price(
    overlay: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, object]
) -> None:
    odd = row("g6.xlarge", "us-east-1", 0.9, str(other.pop("gpu", "L4")), 24.0, **other)
    report = refreshed(overlay, monkeypatch, only(odd, CLOUDS["aws"][0]), clouds=["aws"])
    assert report.left_out == ("aws g6.xlarge",)
    assert ("aws", "us-east-1", "g6.xlarge", "on_demand") not in prices(overlay)


@pytest.mark.parametrize(
    ("factor", "is_shown", "is_taken"), [(1.9, False, True), (0.4, True, True), (3.5, False, False)]
)
def test_a_price_that_moved_far_is_shown_or_not_believed(
    overlay: Path, monkeypatch: pytest.MonkeyPatch, factor: float, is_shown: bool, is_taken: bool
) -> None:
    old = Price("aws", "us-east-1", "g6.xlarge", "on_demand", 1.0, "2026-08-19", "api", "a test")
    write_prices(overlay, [old])
    files = only(row("g6.xlarge", "us-east-1", factor, "L4", 24.0), CLOUDS["aws"][0])
    report = refreshed(overlay, monkeypatch, files, clouds=["aws"])
    assert [str(move) for move in report.moves] == [f"g6.xlarge on demand 1 -> {factor:g} (us-east-1)"] * is_shown
    assert len(report.contradictions) == (not is_taken)
    assert prices(overlay)["aws", "us-east-1", "g6.xlarge", "on_demand"] == (factor if is_taken else 1.0)


@pytest.mark.parametrize("price", ["nan", "inf", "-1", "0", "1e400"])
def test_what_is_no_price_is_not_taken(overlay: Path, monkeypatch: pytest.MonkeyPatch, price: str) -> None:
    files = only(row("g6.xlarge", "us-east-1", price, "L4", 24.0), CLOUDS["aws"][0])
    refreshed(overlay, monkeypatch, files, clouds=["aws"])
    assert set(prices(overlay)) == {("aws", "us-east-1", "p5.48xlarge", "on_demand")}


def test_regions_and_types_can_be_named(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed(overlay, monkeypatch, regions=["ap-south-1"], instance_types=["g6.*"])
    assert set(prices(overlay)) == {("aws", "ap-south-1", "g6.xlarge", "on_demand")}
    with pytest.raises(CatalogError, match="none are published of these regions and types"):
        refreshed(overlay, monkeypatch, regions=["ap-south-1"], instance_types=["p5.*"])


def test_a_cloud_that_fails_keeps_its_old_prices(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed(overlay, monkeypatch)
    before = prices(overlay)
    dearer = [{**each, "price": str(float(each["price"]) * 1.5)} for each in CLOUDS["verda"]]
    files = published({**CLOUDS, "verda": dearer}, version="20260821-413")
    files["/v3/oci/20260821-413/catalog.zip"] = b"not a zip"
    del files["/v3/gcp/version"]
    report = refreshed(overlay, monkeypatch, files)
    assert not report.ok
    errors = {outcome.cloud: outcome.error for outcome in report.outcomes if outcome.error}
    assert set(errors) == {"gcp", "oci"}
    assert "answered 404" in str(errors["gcp"])
    assert "was not understood" in str(errors["oci"])
    assert prices(overlay) == {**before, ("verda", "any", "8H100.80S.176V", "on_demand"): 18.32 * 1.5}


@pytest.mark.parametrize(
    ("files", "message"),
    [({}, "answered 404"),
     ({"/v3/aws/version": b"latest"}, "no date in 'latest'"),
     (only({"instance_name": "g6.xlarge"}), "no row could be read"),
     (only(row("g6.xlarge", "us-east-1", "cheap", "L4", 24.0)), "no row could be read")],
)  # fmt: skip
def test_where_nothing_can_be_had_nothing_is_written(
    overlay: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], message: str
) -> None:
    with pytest.raises(CatalogError, match=message) as caught:
        refreshed(overlay, monkeypatch, files, clouds=["aws"])
    assert "\n" not in str(caught.value)
    assert not overlay.exists()


def test_a_damaged_row_costs_no_other(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = only(row("g6.xlarge", "us-east-1", "cheap", "L4", 24.0), CLOUDS["aws"][0])
    assert refreshed(overlay, monkeypatch, files, clouds=["aws"]).left_out == ("aws g6.xlarge",)
    assert len(prices(overlay)) == 1


def test_a_file_without_an_end_is_given_up(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MOST_MIB", 1)
    bomb = only(row("x" * 3 * 2**20, "us-east-1", 1, "L4", 24.0))
    assert max(map(len, bomb.values())) < 2**20
    with pytest.raises(CatalogError, match="more than 1 MiB"):
        refreshed(overlay, monkeypatch, bomb, clouds=["aws"])


def test_no_server_is_one_line(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", "http://127.0.0.1:1")
    with pytest.raises(CatalogError, match=r"no connection to http://127\.0\.0\.1:1/aws/version"):
        refresh_published(overlay, clouds=["aws"])


def test_clouds_that_nobody_publishes_are_refused(overlay: Path) -> None:
    with pytest.raises(CatalogError, match=r"no prices of 'vast' are published; known: any, aws, azure"):
        refresh_published(overlay, clouds=["vast"])


def test_the_form_is_that_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody has it: its wheel brings a package called `tests`, which would hide ours, so `dev` does not."""
    library = pytest.importorskip("gpuhunt")
    with serving(published()) as url:
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", url)
        catalog = library.Catalog(auto_reload=False)
        catalog.load()
    assert set(catalog.catalog) == set(gpuhunt.CLOUDS.values())
    assert len(catalog.query(min_gpu_count=1)) == sum(
        int(row["gpu_count"]) > 0 for rows in CLOUDS.values() for row in rows
    )
