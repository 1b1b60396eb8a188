"""What the links between the ranks of a run achieved, for the user's overlay of the catalogue.

Inside a machine the figures are from the calibration before the training, when the links were otherwise idle. Between
machines they are from the run's own all-reduces, which share the links with other traffic of the training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.collectives import bus_factor
from ddlprof.model.records import Calibration

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt
    from ddlprof.store import RankData

LARGE_BYTES = 2**20
"""Smaller all-reduces show the latency of a link, not its bandwidth."""


@dataclass(frozen=True)
class AchievedLink:
    """One figure, and how it was measured."""

    what: str
    value: float
    unit: str
    notes: str


def achieved_links(attempt: Attempt, backend: str) -> list[AchievedLink]:
    """The figures. Bandwidths are bus bandwidths in GB/s as nccl-tests defines them: bytes over the busiest link.

    `backend`: that of the training. The calibration always uses gloo on the host and says nothing of NVLink; names of
    figures show that.
    """
    return [*_inside([rank.data for rank in attempt.ranks]), *_between(attempt, backend)]


def _inside(ranks: Sequence[RankData]) -> Iterator[AchievedLink]:
    """Links inside a machine: the sweep's longest transfer gives the bandwidth, its shortest the latency."""
    machines = {rank.node: rank.calibration for rank in ranks if rank.calibration}  # one rank stands for its machine
    if not machines:
        return
    points = [point for sweep in machines.values() for point in sweep if point.op == "allreduce"]
    longest, shortest = (_alike(points, size) for size in (max(r.bytes for r in points), min(r.bytes for r in points)))
    if longest[0].bytes >= LARGE_BYTES:
        duration_ns = float(np.median([point.duration_ns for point in longest]))
        bandwidth = longest[0].bytes * bus_factor("allreduce", longest[0].ranks) / duration_ns
        yield AchievedLink("gloo_allreduce_intra_gb_s", bandwidth, "GB/s", _point_notes(longest))
    latency_us = float(np.median([point.duration_ns for point in shortest])) / 1000
    yield AchievedLink("gloo_allreduce_intra_latency_us", latency_us, "us", _point_notes(shortest))


def _point_notes(points: Sequence[Calibration]) -> str:
    machines = f"{len(points)} machines" if len(points) > 1 else "one machine"
    return f"all-reduces of {points[0].bytes} bytes, {points[0].ranks} ranks, {machines}"


def _alike(points: Sequence[Calibration], size: int) -> list[Calibration]:
    """The calibrations of one size; those of the largest group if machines have different numbers of ranks."""
    of_size = [point for point in points if point.bytes == size]
    most = max(point.ranks for point in of_size)
    return [point for point in of_size if point.ranks == most]


def _between(attempt: Attempt, backend: str) -> Iterator[AchievedLink]:
    """Large all-reduces between machines in steady steps, if transfers can be told from waits."""
    transfer_us, moved, size, count, most = 0, 0.0, 0, 0, 0
    for rank in attempt.ranks:
        matched = rank.collectives
        steady = rank.times.steady[matched.table.row]
        for number, (shape, scope) in enumerate(zip(matched.table.shapes, matched.scopes, strict=True)):
            if scope != "inter" or not shape.op.startswith("allreduce") or shape.bytes < LARGE_BYTES:
                continue
            mine = steady & (matched.table.shape == number) & (matched.transfer_us > 0)
            of_shape = int(np.count_nonzero(mine))
            transfer_us += int(matched.transfer_us[mine].sum())
            moved += of_shape * shape.bytes * bus_factor(shape.op, shape.ranks)
            size += of_shape * shape.bytes
            count += of_shape
            most = max(most, shape.ranks)
    if transfer_us:
        bandwidth = moved / transfer_us / 1000
        notes = f"{count} all-reduces of {size // count} bytes on average, {most} ranks, beside the training"
        yield AchievedLink(f"{backend}_allreduce_inter_gb_s", bandwidth, "GB/s", notes)
