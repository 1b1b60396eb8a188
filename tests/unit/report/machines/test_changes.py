"""What a refresh, and facts of one's own, changed."""

from __future__ import annotations

from pathlib import Path

from ddlprof.report.machines.changes import added, refreshed
from instance_catalog import LinkFact
from instance_catalog.refresh import Contradiction, Outcome, RefreshReport


def test_a_partial_refresh() -> None:
    report = RefreshReport(
        outcomes=(Outcome("us-east-1", "types", 65), Outcome("us-east-1", "on_demand", 0, "AccessDenied: not allowed")),
        contradictions=(Contradiction("us-east-1", "g6.12xlarge", "gpu_memory_gib", "96", "24", "total, not of one"),),
        files=(Path("overlay/instances.csv"),),
    )
    assert refreshed(report) == (
        "region     what              rows\n"
        "us-east-1  types               65\n"
        "us-east-1  on-demand prices     0  failed; the old ones keep their date: AccessDenied: not allowed\n"
        "\n"
        "Not believed (1 answer):\n"
        f"  {report.contradictions[0]}\n"
        "\n"
        "Wrote overlay/instances.csv\n"
    )


def test_a_refresh_without_news() -> None:
    report = RefreshReport((Outcome("us-east-1", "spot", 3),), (), ())
    assert refreshed(report) == "region     what         rows\nus-east-1  spot prices     3\n"


def test_added_facts() -> None:
    fact = LinkFact("p3.8xlarge", "flow_gbps", 4.94949, "Gbit/s", "2026-01-01", "run", "two hosts")
    assert added([fact], Path("overlay")) == (
        "machine     what       value  unit    notes\n"
        "p3.8xlarge  flow_gbps  4.949  Gbit/s  two hosts\n"
        "Added to overlay\n"
    )
