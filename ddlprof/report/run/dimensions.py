"""The part of a report about communication by dimension of the parallel layout."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.analysis.dimensions import SHOWN, column_name
from ddlprof.analysis.run import Attempt
from ddlprof.analysis.traffic import DimensionTraffic
from ddlprof.base.units import seconds_of


@dataclass(frozen=True)
class DimensionLine:
    """Communication along one dimension of the parallel layout, in a mean steady step of a rank."""

    dimension: str
    """data, tensor, pipeline, context or expert; empty for groups of which none is known."""
    group_sizes: list[int]
    """The numbers of ranks in the groups."""
    scopes: list[str]
    comm_s: float | None
    """The exposed communication; those of all dimensions add up to `comm`."""
    share: float | None
    """Its share of the step."""
    interconnect_s: float | None
    network_s: float | None
    straggler_s: float | None
    bubble_s: float | None
    collectives: float
    """The number of collectives and messages."""
    bytes: float
    duration_s: float
    """The time of its collectives, exposed or hidden."""
    bus_gb_s: float | None


def dimension_lines(headline: Attempt) -> list[DimensionLine]:
    """A line for each dimension with collectives or communication in the steady steps; none if none is known."""
    traffic: dict[str, DimensionTraffic] = {}
    for rank in headline.ranks:
        for dimension, more in rank.traffic.dimensions.items():
            traffic[dimension] = traffic.get(dimension, DimensionTraffic()).plus(more)
    return [
        _line(headline, dimension, traffic.get(dimension, DimensionTraffic()))
        for dimension in SHOWN
        if dimension in traffic or column_name(dimension) in headline.summary.dimensions
    ]


def _line(headline: Attempt, dimension: str, traffic: DimensionTraffic) -> DimensionLine:
    summary = headline.summary
    step_ns, steps = summary.mean_ns("step"), max(sum(int(rank.times.steady.sum()) for rank in headline.ranks), 1)

    def mean_s(part: str = "") -> float | None:
        spread = summary.dimensions.get(column_name(dimension, part))
        return seconds_of(spread.mean_ns) if spread else None

    comm_s = mean_s()
    return DimensionLine(
        dimension=dimension,
        group_sizes=sorted(traffic.group_sizes),
        scopes=sorted(traffic.scopes - {""}),
        comm_s=comm_s,
        share=comm_s * 1e9 / step_ns if comm_s is not None and step_ns else None,
        interconnect_s=mean_s("interconnect"),
        network_s=mean_s("network"),
        straggler_s=mean_s("straggler"),
        bubble_s=mean_s("bubble"),
        collectives=traffic.collectives / steps,
        bytes=traffic.bytes / steps,
        duration_s=traffic.duration_us / 1e6 / steps,
        bus_gb_s=traffic.bus_gb_s,
    )
