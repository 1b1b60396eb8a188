"""What is taken over of the answers of several regions, and where refresh stops."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.instance_catalog import Catalog, CatalogError, load
from ddlprof.instance_catalog.refresh import refresh
from ddlprof.instance_catalog.refresh.fetch import RegionAnswers
from ddlprof.instance_catalog.refresh.providers.aws import Aws
from ddlprof.instance_catalog.refresh.providers.aws_answers import parse_type
from ddlprof.instance_catalog.refresh.run import accept

DUMP = json.loads((Path(__file__).parent / "describe_instance_types.json").read_text(encoding="utf-8"))
ANSWERS = {answer.instance_type: answer for entry in DUMP["InstanceTypes"] if (answer := parse_type(entry))}
AWS = Aws(clients=lambda service, region: None)
P4D, G6F = ANSWERS["p4d.24xlarge"], ANSWERS["g6f.large"]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load(None)


def test_a_contradiction_of_two_regions_is_said_once(catalog: Catalog) -> None:
    wrong = replace(P4D, vcpus=95)
    regions = [RegionAnswers("us-east-1", types=[wrong]), RegionAnswers("us-west-2", types=[wrong])]
    taken = accept(regions, catalog, AWS, ["p4d.*"], as_of="2026-09-01")
    assert [(doubt.region, doubt.field) for doubt in taken.contradictions] == [("us-east-1", "vcpus")]
    assert taken.instances["p4d.24xlarge"].vcpus == 96
    assert (taken.counts["us-east-1", "types"], taken.counts["us-west-2", "types"]) == (1, 1)


def test_regions_that_were_asked_are_added_and_taken_away(catalog: Catalog) -> None:
    assert set(catalog.instance("g6f.large").offered_regions) == {"us-east-1", "us-east-2", "us-west-2"}
    regions = [
        RegionAnswers("us-east-1", types=[P4D, G6F], offerings={"p4d.24xlarge", "m5.large"}),
        RegionAnswers("eu-west-1", offerings={"p4d.24xlarge", "g6f.large"}),
        RegionAnswers("us-west-2"),  # was not answered
    ]
    taken = accept(regions, catalog, AWS, ["p4d.*", "g6f.large"], as_of="2026-09-01")
    assert taken.instances["g6f.large"].offered_regions == ("eu-west-1", "us-east-2", "us-west-2")
    assert taken.instances["g6f.large"].offered is True
    assert "m5.large" not in taken.instances
    assert (taken.counts["us-east-1", "offerings"], taken.counts["eu-west-1", "offerings"]) == (1, 2)


def test_a_type_without_newer_facts_keeps_their_date(catalog: Catalog) -> None:
    taken = accept(
        [RegionAnswers("sa-east-1", offerings={"p5.48xlarge"})], catalog, AWS, ["p5.48xlarge"], as_of="2026-09-01"
    )
    row = taken.instances["p5.48xlarge"]
    assert "sa-east-1" in row.offered_regions
    assert (row.spec_as_of, row.vcpus) == (catalog.instance("p5.48xlarge").spec_as_of, None)


def test_a_type_no_longer_on_offer_anywhere_is_retired(catalog: Catalog) -> None:
    gone = [
        RegionAnswers(region, offerings={"m5.large"}) for region in catalog.instance("p4de.24xlarge").offered_regions
    ]
    taken = accept(gone, catalog, AWS, ["p4de.*"], as_of="2026-09-01")
    assert taken.instances["p4de.24xlarge"].offered is False


def test_a_fresh_on_demand_price_is_what_spot_is_held_against(catalog: Catalog) -> None:
    spot = {"p4d.24xlarge": 1.0}
    cheap = RegionAnswers("us-east-1", on_demand={"p4d.24xlarge": 8.0}, spot=spot)
    assert [price.pricing for price in accept([cheap], catalog, AWS, ["p4d.*"], "2026-09-01").prices] == [
        "on_demand",
        "spot",
    ]
    no_price_yet = RegionAnswers("sa-east-1", spot={"p4d.24xlarge": 0.1})
    taken = accept([no_price_yet], catalog, AWS, ["p4d.*"], "2026-09-01")
    assert not taken.prices
    assert [doubt.field for doubt in taken.contradictions] == ["spot_usd_per_hour"]


def test_where_every_call_fails_nothing_is_written(tmp_path: Path) -> None:
    def broken(service: str, region: str) -> Any:
        raise ValueError("Invalid endpoint: nonsense")

    overlay = tmp_path / "overlay"
    with pytest.raises(
        CatalogError, match="nothing was refreshed, all calls failed: Invalid endpoint: nonsense"
    ) as caught:
        refresh(["us-east-1"], overlay, provider=Aws(clients=broken))
    assert "\n" not in str(caught.value)
    assert not overlay.exists()


def test_a_damaged_overlay_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("cloud,region\naws", encoding="utf-8")

    def unasked(service: str, region: str) -> Any:
        raise AssertionError

    with pytest.raises(CatalogError, match=r"prices\.csv, line"):
        refresh(["us-east-1"], tmp_path, provider=Aws(clients=unasked))
