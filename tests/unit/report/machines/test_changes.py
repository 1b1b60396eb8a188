"""What a refresh and measured links changed, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from ddlprof.instance_catalog import LinkFact
from ddlprof.instance_catalog.refresh import Contradiction, Move, RefreshOutcome, RefreshReport
from ddlprof.report.machines.changes import (
    LINKS,
    added,
    added_as_json,
    refreshed,
    refreshed_as_json,
)

PARTIAL = RefreshReport(
    outcomes=(
        RefreshOutcome("us-east-1", "types", 65),
        RefreshOutcome("us-east-1", "on_demand", 0, "AccessDenied: not allowed"),
    ),
    contradictions=(Contradiction("us-east-1", "g6.12xlarge", "gpu_memory_gib", "96", "24", "total, not of one"),),
    files=(Path("overlay/instances.csv"),),
)
FACT = LinkFact("p3.8xlarge", "flow_gbps", 4.94949, "Gbit/s", "2026-01-01", "run", "two hosts")


def test_a_partial_refresh() -> None:
    assert refreshed(PARTIAL) == (
        "region     what              rows\n"
        "us-east-1  types               65\n"
        "us-east-1  on-demand prices     0  failed; the old ones keep their date: AccessDenied: not allowed\n"
        "\n"
        "Not believed (1 answer):\n"
        f"  {PARTIAL.contradictions[0]}\n"
        "\n"
        "Wrote overlay/instances.csv\n"
    )


def test_a_refresh_without_news() -> None:
    report = RefreshReport((RefreshOutcome("us-east-1", "spot", 3),), (), ())
    assert refreshed(report) == "region     what         rows\nus-east-1  spot prices     3\n"


def test_a_refresh_of_several_clouds() -> None:
    report = RefreshReport(
        (RefreshOutcome("any", "prices", 3, cloud="gcp"), RefreshOutcome("any", "prices", 0, "no answer", "oci")),
        (),
        (Path("prices.csv"),),
        moves=tuple(Move("us-central1", f"a{n}", "on_demand", 3.0, 8.5) for n in range(22)),
        added=("gcp x1",),
        left_out=tuple(f"gcp y{n}" for n in range(6)),
    )
    lines = refreshed(report).splitlines()
    assert lines[:6] == [
        "cloud  what    rows",
        "gcp    prices     3",
        "oci    prices     0  failed; the old ones keep their date: no answer",
        "",
        "Moved by more than a factor of 2 (22 prices):",
        "  a0 on demand 8.5 -> 3 (us-central1)",
    ]
    assert lines[-7:] == [
        "  and 2 more: --format json has all",
        "",
        "New, their links and network unknown (1): gcp x1",
        "",
        "Left out, as it is not known what they are (6): gcp y0, gcp y1, gcp y2, gcp y3, gcp y4, ...",
        "",
        "Wrote prices.csv",
    ]
    assert json.loads(refreshed_as_json(report))["moves"][0]["before_usd_per_hour"] == 8.5


def test_added_facts() -> None:
    assert added([FACT], Path("overlay")) == (
        "machine     what       value  unit    notes\n"
        "p3.8xlarge  flow_gbps  4.949  Gbit/s  two hosts\n"
        "Added to overlay\n"
    )


def test_a_refresh_for_programs() -> None:
    found = json.loads(refreshed_as_json(PARTIAL))
    assert found == {
        "ok": False,
        "outcomes": [
            {"region": "us-east-1", "kind": "types", "rows": 65, "error": None, "cloud": ""},
            {"region": "us-east-1", "kind": "on_demand", "rows": 0, "error": "AccessDenied: not allowed", "cloud": ""},
        ],
        "contradictions": [
            {
                "region": "us-east-1",
                "instance_type": "g6.12xlarge",
                "field": "gpu_memory_gib",
                "answered": "96",
                "kept": "24",
                "reason": "total, not of one",
            }
        ],
        "moves": [],
        "added": [],
        "left_out": [],
        "files": ["overlay/instances.csv"],
    }


def test_added_facts_for_programs() -> None:
    found = json.loads(added_as_json([FACT], Path("overlay")))
    assert (found["overlay"], found["added"][0]["value"]) == ("overlay", 4.94949)
    (row,) = csv.DictReader(io.StringIO(LINKS.csv([FACT])))
    assert tuple(row) == tuple(found["added"][0]) == LINKS.heads
    assert list(row.values()) == ["p3.8xlarge", "flow_gbps", "4.94949", "Gbit/s", "2026-01-01", "run", "two hosts"]
