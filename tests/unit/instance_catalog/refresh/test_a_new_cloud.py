"""A refresh of a made-up cloud. `tests/unit/test_adding_a_class_and_a_cloud.py` adds it as the docs say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.cli.app import main
from ddlprof.instance_catalog import CatalogError, clouds, load
from ddlprof.instance_catalog.refresh import refresh
from ddlprof.instance_catalog.refresh.providers.base import CallFailed
from ddlprof.instance_catalog.refresh.run import PROVIDERS
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
    with pytest.raises(CatalogError, match=r"facts and prices of 'gcp' cannot be fetched; known: .*, toy"):
        refresh([], overlay, cloud="gcp")
