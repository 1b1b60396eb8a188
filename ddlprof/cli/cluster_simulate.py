"""`ddlprof cluster simulate`: a trace of jobs on a cluster under several policies, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    trace: Annotated[Path, typer.Option(metavar="FILE", help="Jobs, as a CSV file.")],
    cluster: Annotated[str, typer.Option(metavar="SHAPE", help="MACHINESxGPUS or RACKSxMACHINESxGPUS: 8x8, 2x4x8.")],
    policy: Annotated[str, typer.Option(metavar="P,...", help="Policies to compare.")],
) -> None:
    """Simulate a trace of jobs on a cluster under several policies, and compare what comes of it."""
    import csv

    from ddlprof.cli.screen import show
    from ddlprof.cluster.jobs import Job
    from ddlprof.cluster.machines import parse_cluster
    from ddlprof.cluster.registry import policy as policy_of
    from ddlprof.cluster.simulation.core import simulate as simulated
    from ddlprof.cluster.speeds import AsMeasured
    from ddlprof.report.columns import aligned
    from ddlprof.report.lines import text_of

    with trace.open(encoding="utf-8", newline="") as file:
        jobs = [
            Job(row["job_id"], float(row["submit_s"]), int(row["gpus"]), 1000.0, 1, float(row["duration_s"]) / 1000)
            for row in csv.DictReader(file)
        ]
    machines = parse_cluster(cluster)
    rows = [["policy", "mean completion h"]]
    for name in policy.split(","):
        result = simulated(jobs, machines, policy_of(name)(), AsMeasured())
        mean_s = sum(outcome.completion_s for outcome in result.outcomes) / len(result.outcomes)
        rows.append([name, f"{mean_s / 3600:.2f}"])
    show(text_of(aligned(rows, right={1})))
