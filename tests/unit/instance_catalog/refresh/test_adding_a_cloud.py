"""A cloud is added in as many places as `docs/architecture.md` says: a class, a line, and a row of `clouds.csv`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddlprof.cli.app import main
from ddlprof.instance_catalog import CatalogError, clouds, load
from ddlprof.instance_catalog.refresh import refresh
from ddlprof.instance_catalog.refresh.providers.base import CallFailed
from ddlprof.instance_catalog.refresh.run import PROVIDERS
from ddlprof.recommender import Measurement, Workload, recommend
from tests.unit.instance_catalog.refresh.made_up import Toy


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's directory; the toy is one of the clouds."""
    monkeypatch.setitem(PROVIDERS, "toy", Toy)
    monkeypatch.setitem(clouds._known(), "toy", clouds.Cloud("toy", reference_region="moon"))
    monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path / "overlay"))
    return tmp_path / "overlay"


def ddlprof(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["ddlprof", *arguments])
    return main()


def test_its_types_and_prices_are_fetched_and_listed(
    overlay: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ddlprof(monkeypatch, "instances", "refresh", "--cloud", "toy") == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:5]] == [
        ["moon", kind] for kind in ("types", "offerings", "on-demand", "spot")
    ]
    assert ddlprof(monkeypatch, "instances", "--cloud", "toy", "--format", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["cloud"], row["instance_type"], row["gpu_model"], row["gpus"]) == ("toy", "t1.one", "T4", 1)
    assert (row["on_demand_usd_per_hour"], row["spot_usd_per_hour"]) == (1.0, 0.4)


def test_its_machines_can_be_recommended(overlay: Path) -> None:
    refresh([], overlay, cloud="toy")
    measured = Measurement(gpu_model="T4", placement=(1,), batch_per_gpu=32, step_s=0.2)
    job = Workload("net", gradient_bytes=1e8, measurements=[measured])
    plans = recommend(job, samples=1e6, budget_s=86400, cloud="toy", max_nodes=1, catalog=load(overlay))
    assert [(plan.region, plan.instance_type, plan.usd_per_hour) for plan in plans] == [("moon", "t1.one", 1.0)]


def test_what_it_says_is_held_against_what_is_known_of_its_own_types(overlay: Path) -> None:
    refresh([], overlay, cloud="toy")
    report = refresh([], overlay, provider=Toy(on_demand={"t1.one": 50.0}, spot={"t1.one": 0.5}))
    assert [str(doubt) for doubt in report.contradictions] == [
        "t1.one on_demand_usd_per_hour 50 (moon): changed by more than a factor of 3; kept 1"
    ]
    catalog = load(overlay)
    sources = {price.source for price in catalog.prices if price.cloud == "toy"}
    assert sources == {"Toy Prices", "Toy Spot"}
    assert catalog.instance("t1.one").source == "Toy Types"


def test_its_failures_are_one_line(
    overlay: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = CallFailed("nobody on the moon:\n ask later", lasting=True)
    monkeypatch.setitem(PROVIDERS, "toy", lambda profile: Toy(types=silent, on_demand=silent))
    assert ddlprof(monkeypatch, "instances", "refresh", "--cloud", "toy") == 2
    assert capsys.readouterr().err == (
        "ddlprof: nothing was refreshed, all calls failed: nobody on the moon: ask later (moon)\n"
    )
    assert not overlay.exists()


def test_a_cloud_that_is_not_in_the_table_is_one_line(overlay: Path) -> None:
    with pytest.raises(CatalogError, match=r"facts and prices of 'gcp' cannot be fetched; known: aws, oci, toy"):
        refresh([], overlay, cloud="gcp")
