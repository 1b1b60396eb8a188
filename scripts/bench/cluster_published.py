"""Our mean completion times beside those that the authors of Pollux and Muri published for the same jobs.

Takes a folder with `pollux_sia.csv`, `muri.csv` and `reference_results.csv` (trace, policy, metric, value), which are
no part of this project. Prints Markdown for docs/benchmarks.md. yolov3 jobs, whose durations are not known, are given
the middle of their class of GPU-time, 10^1.5 GPU-hours, because the published means include them.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from statistics import geometric_mean

from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import parse_cluster
from ddlprof.extensions.cluster.policy import policy_factory
from ddlprof.extensions.cluster.simulation.core import Costs, simulate
from ddlprof.extensions.cluster.simulation.metrics import summary
from ddlprof.extensions.cluster.speeds import AsMeasured
from ddlprof.extensions.cluster.trace import read_trace
from scripts.bench.jobs import print_table, progress

YOLO_GPU_S = 10**1.5 * 3600
TRACES = {"pollux": ("pollux_sia.csv", "16x4", "tiresias"), "muri": ("muri.csv", "8x8", "tiresias")}
"""By the beginning of a trace's name: its file, its cluster, and the published policy that is set beside ours."""
POLICIES = ("fifo", "las", "srtf")


def completed(path: Path, name: str) -> list[Job]:
    """The jobs of a trace with the durations that are not known filled in."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["trace"] == name]
    for row in rows:
        row["duration_s"] = row["duration_s"] or str(YOLO_GPU_S / float(row["gpus"]))
    with tempfile.TemporaryDirectory() as folder:
        filled = Path(folder) / "filled.csv"
        with filled.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        return read_trace(filled, name)


def mean_s(jobs: list[Job], cluster: str, name: str) -> float:
    """The mean completion time, with restarts of 30 s and without any penalty of placements."""
    machines = parse_cluster(cluster)
    simulated = simulate(jobs, machines, policy_factory(name)(), AsMeasured(), costs=Costs(restart_s=30.0))
    return summary(simulated, machines.gpus).completion_mean_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    with (folder / "reference_results.csv").open(newline="") as file:
        published = {
            (row["trace"], row["policy"]): float(row["value"])
            for row in csv.DictReader(file)
            if row["metric"] == "avg_jct_s"
        }
    rows, ratios = [], []
    for trace in dict.fromkeys(trace for trace, _ in published):
        file_name, cluster, theirs = TRACES[trace.partition("-")[0]]
        progress(trace)
        jobs = completed(folder / file_name, trace)
        ours = [mean_s(jobs, cluster, name) for name in POLICIES]
        reference = published[trace, theirs]
        ratios.append(ours[1] / reference)
        rows.append([trace, len(jobs), f"{reference:,.0f}", *(f"{each:,.0f}" for each in ours), f"{ratios[-1]:.2f}"])
    print_table(
        ["trace", "jobs", "published Tiresias s", *(f"our {name} s" for name in POLICIES), "las / Tiresias"], rows
    )
    print(f"\nGeometric mean of the ratios: {geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()
