"""Dally beside its relatives: traces with measured placement penalties, and its own workloads with a model of rings.

python -m scripts.bench.dally gavel.csv [TRACE...]
python -m scripts.bench.dally dally.csv dally_layers.csv

On the former, 500 jobs on 8x8 GPUs at load 0.9, their GPUs as published and drawn anew over 1 to 16 (30, 15, 25, 25 and
5 %); required: 30 % fewer communication GPU-hours and 5 % lower mean completion time than no-wait. On the latter the
published figures: makespan -69 %, mean completion time -83 %, communication -98 % against consolidating schedulers.
"""

from __future__ import annotations

import csv
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from time import process_time
from typing import NamedTuple

from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import Cluster, Level, Placement, parse_cluster
from ddlprof.extensions.cluster.penalties import PenalisedSpeeds, shipped_penalties
from ddlprof.extensions.cluster.policy import policy_factory
from ddlprof.extensions.cluster.simulation.core import simulate
from ddlprof.extensions.cluster.speeds import Speeds, StepTime
from ddlprof.extensions.cluster.trace import fitted, read_trace, rescaled

FIXED = "dally;rack_delay=6;network_delay=12"
POLICIES = ("no-wait", "consolidate", "las", FIXED, "dally")
JOBS, LOAD, SHAPE = 500, 0.9, "8x8"
GPUS, SHARES = (1, 2, 4, 8, 16), (30, 15, 25, 25, 5)
TRACES = (
    "gavel-msr-0e4a51-s0", "gavel-msr-2869ce-s0", "gavel-msr-e13805-s0", "gavel-msr-ee9e8c-s0", "gavel-msr-6c71a0-s0",
)  # fmt: skip
LEASE_OF_OWN = ";lease_s=3600"
SETTINGS = (
    ("dally-411-poisson-1proc-week", "4x2x8", 0.3),
    ("dally-411-poisson-1proc-week", "2x4x8", 1.5),
    ("dally-500-batch", "4x2x8", 0.3),
    ("dally-500-batch", "4x2x8", 1.5),
)
NVLINK_GB_S, NVLINK_LATENCY_S = 150.0, 3e-6
LATENCY_S = {Level.RACK: 5e-6, Level.NETWORK: 50e-6}
BETWEEN_RACKS = 0.5
"""The bandwidth between racks as a share of that in one: assumed, as the published networks give no unit."""


class Layer(NamedTuple):
    forward_s: float
    backward_s: float
    gradient_bytes: float


class Rings:
    """Steps of Dally's own models: an all-reduce for each layer over a ring, behind the rest of the backward pass."""

    def __init__(self, layers: dict[str, list[Layer]], network_gb_s: float) -> None:
        self._layers, self._network_gb_s = layers, network_gb_s
        self._known: dict[tuple[str | None, int, Level], float] = {}

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        key = (job.model, placement.gpus, placement.level)
        if key not in self._known:
            self._known[key] = self._exposed_share(*key)
        compute_s = job.step_s or 1.0
        step_s = compute_s * (1 + self._known[key])
        return StepTime(step_s, step_s, step_s, step_s - compute_s)

    def _exposed_share(self, model: str | None, gpus: int, level: Level) -> float:
        """Exposed communication over computation."""
        layers = self._layers[model or ""]
        gb_s, latency_s = NVLINK_GB_S, NVLINK_LATENCY_S
        if level != Level.MACHINE:
            gb_s, latency_s = self._network_gb_s, LATENCY_S[level]
        if level == Level.NETWORK:
            gb_s *= BETWEEN_RACKS
        compute_s = sum(layer.forward_s + layer.backward_s for layer in layers)
        now_s = sum(layer.forward_s for layer in layers)
        free_s = 0.0
        for layer in reversed(layers):
            now_s += layer.backward_s
            if gpus > 1 and layer.gradient_bytes:
                ring_s = 2 * (gpus - 1) * (layer.gradient_bytes / gpus / (gb_s * 1e9) + latency_s)
                free_s = max(free_s, now_s) + ring_s
        return max(free_s - now_s, 0.0) / compute_s


def read_layers(path: Path) -> dict[str, list[Layer]]:
    """By the model of the jobs. The input gradients of the first two layers are not counted: the first needs none, and
    both were measured together with the start-up."""
    found: dict[str, list[Layer]] = {}
    for row in csv.DictReader(path.open(encoding="utf-8", newline="")):
        if "astra-sim" in row["file"]:
            layers = found.setdefault(row["dally_job_model"], [])
            input_s = float(row["input_grad_ns"] or 0) if len(layers) > 1 else 0.0
            backward_s = (input_s + float(row["weight_grad_ns"] or 0)) / 1e9
            layers.append(Layer(float(row["forward_ns"]) / 1e9, backward_s, float(row["allreduce_bytes"] or 0)))
    return found


def own_jobs(path: Path, trace: str) -> list[Job]:
    """The clock of the authors' simulator: the published duration divided by the GPUs."""
    rows = csv.DictReader(path.open(encoding="utf-8", newline=""))
    ideal_s = {row["job_id"]: json.loads(row["extra"])["sim_ideal_s"] for row in rows if row["trace"] == trace}
    return [
        replace(job, step_s=ideal_s[job.job_id] / (job.samples / job.batch)) for job in read_trace(path, trace)
    ]  # fmt: skip


def redrawn(jobs: Sequence[Job], seed: int = 0) -> list[Job]:
    """The same jobs with other numbers of GPUs; each takes as long as before."""
    draw = random.Random(seed)
    numbers = draw.choices(GPUS, SHARES, k=len(jobs))
    changed = []
    for job, gpus in zip(jobs, numbers, strict=True):
        batch = max(job.batch // job.gpus, 1) * gpus
        changed.append(replace(job, gpus=gpus, batch=batch, samples=job.samples / job.batch * batch))
    return changed


def compare(title: str, jobs: Sequence[Job], cluster: Cluster, speeds: Speeds, suffix: str = "") -> None:
    """Prints a line for each policy."""
    print(f"\n{title}: {len(jobs)} jobs\n{'policy':38}  mean h  median h  makespan h  comm GPU-h  all GPU-h  CPU s")
    means, comms = {}, {}
    for name in POLICIES:
        began_s = process_time()
        found = simulate(jobs, cluster, policy_factory(name + ("" if name == "las" else suffix))(), speeds).outcomes
        took_s = process_time() - began_s
        hours = [outcome.completion_s / 3600 for outcome in found]
        means[name], comms[name] = fmean(hours), sum(outcome.comm_gpu_s for outcome in found) / 3600
        end_h, held_h = max(each.end_s for each in found) / 3600, sum(each.held_gpu_s for each in found) / 3600
        print(
            f"{name:38} {means[name]:7.1f} {median(hours):9.1f} {end_h:11.0f} {comms[name]:11.0f} {held_h:10.0f}"
            f" {took_s:6.1f}",
            flush=True,
        )
    for other in POLICIES[:-1]:
        comm = f"{comms['dally'] / comms[other] - 1:+.0%}" if comms[other] else "none there"
        print(f"dally against {other}: mean {means['dally'] / means[other] - 1:+.0%}, communication {comm}")


def penalised(path: Path, names: Sequence[str]) -> None:
    cluster = parse_cluster(SHAPE)
    speeds = PenalisedSpeeds(cluster, shipped_penalties())
    for name in names:
        published = sorted(read_trace(path, name), key=lambda job: job.submit_s)[:JOBS]
        for what, jobs in (("GPUs drawn anew", redrawn(published)), ("GPUs as published", published)):
            kept, _ = fitted(jobs, cluster, "drop")
            compare(f"{name}, {what}", rescaled(kept, LOAD, cluster), cluster, speeds)


def own(path: Path, layers: Path) -> None:
    models = read_layers(layers)
    for trace, shape, gb_s in SETTINGS:
        cluster = parse_cluster(shape)
        jobs = own_jobs(path, trace)
        compare(f"{trace}, {shape}, {gb_s} GB/s", jobs, cluster, Rings(models, gb_s), LEASE_OF_OWN)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2].endswith(".csv"):
        own(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        penalised(Path(sys.argv[1]), sys.argv[2:] or TRACES)
