"""Reads the published measurements of placements as the jobs that the predictor is fitted and tested on."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ddlprof.recommender.target import Target
from ddlprof.recommender.workload import Measurement, Workload

MACHINES: dict[str, dict[str, Any]] = {
    "aws": {"instance_type": "g4dn.12xlarge"},
    "rtx": {"gpu_model": "RTX2080Ti-11GB", "interconnect": "PCIe3", "network_gbps": 50.0},
    "dgx": {"gpu_model": "A100-40GB", "interconnect": "NVLink3/NVSwitch", "network_gbps": 1600.0},
    "dgx-ext": {"gpu_model": "A100-40GB", "interconnect": "NVLink3/NVSwitch", "network_gbps": 1600.0},
}
"""The clusters, as `Target` and `Measurement` describe machines."""
FULL_NODE = {"aws": 4, "rtx": 8, "dgx": 8, "dgx-ext": 8}
SCATTERING = "scattering"
"""The made-up cluster of `scattering`."""
STALL_SD = 0.4
"""How much later the slowest rank is there, as a share of the step: half-normal, so a third of the step in the mean."""
PRECISIONS = {"fp32": "fp32", "amp-O1": "amp"}


@dataclass(frozen=True)
class Point:
    """One measured placement."""

    placement: tuple[int, ...]
    batch_per_gpu: int
    step_s: float
    sync_s: float


@dataclass(frozen=True)
class PublishedJob:
    """One model on one cluster, with all its points and the counts of its model."""

    cluster: str
    model: str
    precision: str
    layers: int
    tensors: int
    gradient_bytes: float
    points: tuple[Point, ...]

    @property
    def alone(self) -> dict[int, Point]:
        """The points with one GPU, by batch."""
        return {point.batch_per_gpu: point for point in self.points if point.placement == (1,)}

    @property
    def together(self) -> list[Point]:
        """More than one GPU, at batches that were measured on one GPU too."""
        alone = self.alone
        return [point for point in self.points if sum(point.placement) > 1 and point.batch_per_gpu in alone]

    @property
    def middle_batch(self) -> int:
        """The middle one of the batches on one GPU; the upper of two middles."""
        batches = sorted(self.alone)
        return batches[len(batches) // 2]

    def up_to(self, nodes: int) -> PublishedJob:
        """The job with its points on up to so many nodes."""
        return replace(self, points=tuple(point for point in self.points if len(point.placement) <= nodes))

    def workload(self, placements: Iterable[tuple[int, ...]], batch: int | None = None) -> Workload:
        """What a user would know: one GPU at all batches, and these placements at a batch (None: the middle one)."""
        known = [self._measurement(point, exposed_s=0.0) for point in self.alone.values()]
        wanted = set(placements)
        known += [
            self._measurement(point, point.sync_s)
            for point in self.together
            if point.placement in wanted and point.batch_per_gpu == (batch or self.middle_batch)
        ]
        return Workload(
            name=self.model,
            layers=self.layers,
            parameter_tensors=self.tensors,
            gradient_bytes=self.gradient_bytes,
            measurements=known,
        )

    def target(self, point: Point) -> Target:
        """The placement of a point, as a target."""
        return Target(
            placement=point.placement,
            batch_per_gpu=point.batch_per_gpu,
            precision=self.precision,
            **MACHINES[self.cluster],
        )

    def _measurement(self, point: Point, exposed_s: float) -> Measurement:
        return Measurement(
            **MACHINES[self.cluster],
            placement=point.placement,
            batch_per_gpu=point.batch_per_gpu,
            step_s=point.step_s,
            exposed_comm_s=exposed_s,
            precision=self.precision,
        )


def scattering(job: PublishedJob, seed: int = 1) -> PublishedJob:
    """The job on a made-up cluster whose ranks wait for each other at random: its steps over several GPUs are longer by
    independent half-normal shares (`STALL_SD`), which are exposed."""
    draw = np.random.default_rng([seed, len(job.points), len(job.model)])
    points = []
    for point in job.points:
        stall_s = point.step_s * abs(draw.normal(0.0, STALL_SD)) if sum(point.placement) > 1 else 0.0
        points.append(replace(point, step_s=point.step_s + stall_s, sync_s=point.sync_s + stall_s))
    return replace(job, points=tuple(points))


def read_jobs(folder: Path) -> list[PublishedJob]:
    """The jobs of `placements_train.csv`, with the counts of `models.csv`."""
    counts = {row["model"]: row for row in _rows(folder / "models.csv")}
    seen: dict[tuple[str, str, str], dict[tuple[tuple[int, ...], int], list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in _rows(folder / "placements_train.csv"):
        if row["placement"]:
            key = row["cluster"], row["model"], PRECISIONS[row["precision"]]
            at = tuple(int(gpus) for gpus in row["placement"]), int(float(row["batch_per_gpu"]))
            seen[key][at].append((float(row["step_time_s"]), float(row["sync_time_s"])))
    return [
        PublishedJob(
            cluster=cluster,
            model=model,
            precision=precision,
            layers=int(float(counts[model]["weight_layers"])),
            tensors=int(float(counts[model]["param_tensors"])),
            gradient_bytes=float(counts[model]["gradient_mb_fp32"]) * 1e6,
            points=tuple(
                Point(placement, batch, fmean(t for t, _ in times), fmean(s for _, s in times))
                for (placement, batch), times in points.items()
            ),
        )
        for (cluster, model, precision), points in sorted(seen.items())
    ]


def _rows(path: Path) -> Iterable[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)
