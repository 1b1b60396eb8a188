"""Predicts published jobs whose model was left out of the fit, and calibrates 80 % intervals on their errors.

The errors of one model go together, so coverage is counted for each group (a model on a cluster, or on a number of
nodes) and averaged over the groups: a new job is a new group.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

import numpy as np

from ddlprof.recommender.communication.coefficients import Prior
from ddlprof.recommender.communication.exposed import Array, Load, placing_of
from ddlprof.recommender.communication.job_parameters import JobFit, Observation
from ddlprof.recommender.estimate import Z80
from scripts.fit.link_groups import JOB_SD, Group
from scripts.fit.placements import FULL_NODE, Point, PublishedJob

COVERAGE = 0.82
"""Aimed at by the calibration of 80 % intervals: a little more, since jobs differ more than these five do."""
COMPUTE_SD = 0.03
"""The spread of a measured computation, which `ddlprof.recommender.compute.micro_batch` adds."""
FEW = ("few", "exposed", "second", "any", "other")
"""The levels of evidence that intervals with measured placements are calibrated on."""


class Shots(NamedTuple):
    """The placements of several GPUs that are measured, and their batch per GPU."""

    placements: list[tuple[int, ...]]
    batch: int

    def have(self, point: Point) -> bool:
        """Whether the point is one of them."""
        return point.placement in self.placements and point.batch_per_gpu == self.batch


def shots_of(job: PublishedJob) -> dict[str, Shots]:
    """The levels of evidence: none; two placements at the middle batch, or at the smallest, where nothing is hidden;
    three at the middle batch; and twice two that were drawn, as people measure what they have."""
    draw = random.Random(f"{job.cluster} {job.model}")
    full, middle, smallest = FULL_NODE[job.cluster], job.middle_batch, min(job.alone)
    two = [(full,), (1, 1)]
    return {
        "zero": Shots([], middle),
        "few": Shots(two, middle),
        "exposed": Shots(two, smallest),
        "second": Shots([*two, (full, full)], middle),
        "any": _drawn(job, draw),
        "other": _drawn(job, draw),
    }


def _drawn(job: PublishedJob, draw: random.Random) -> Shots:
    """A placement in one machine and one on two, at any batch."""
    batch = draw.choice([point.batch_per_gpu for point in job.together])
    there = [point.placement for point in job.together if point.batch_per_gpu == batch]
    return Shots([draw.choice([p for p in there if len(p) == nodes] or there) for nodes in (1, 2)], batch)


@dataclass(frozen=True)
class Residuals:
    """The residuals of a job whose model was left out of the fit, over the points that were not given as measured."""

    source: str
    """The cluster of the placements, or the publication."""
    model: str
    shots: str
    log_error: Array
    parameter_sd: Array
    unknown: Array
    """Share of the uncertainty that no measured point close by takes away."""
    nodes: Array
    fitted_nodes: int
    """The most nodes that the fit has seen."""
    scattered: Array = field(default_factory=lambda: np.zeros(1))
    """What steps scatter by, and explanations differ, which is not widened."""

    @property
    def median_error(self) -> float:
        """Median of the absolute relative error of step time."""
        return float(np.median(np.abs(np.expm1(self.log_error))))

    def sd(self, widen: float, floor: float, reach: float = 0.0) -> Array:
        """The calibrated standard deviation of each point."""
        far = reach * np.log2(np.maximum(self.nodes / self.fitted_nodes, 1.0)) if reach else 0.0
        near = np.hypot(widen * self.parameter_sd, floor * self.unknown)
        return np.asarray(np.hypot(np.hypot(near, far), np.hypot(self.scattered, COMPUTE_SD)))

    def of_nodes(self, nodes: int) -> Residuals:
        """Those on so many nodes."""
        kept = self.nodes == nodes
        return replace(
            self, log_error=self.log_error[kept], parameter_sd=self.parameter_sd[kept], unknown=self.unknown[kept],
            nodes=self.nodes[kept], scattered=np.broadcast_to(self.scattered, kept.shape)[kept],
        )  # fmt: skip


def residuals_of(
    job: PublishedJob, shots: str, group: Group, fitted_nodes: int = 0, prior_sd: Array = JOB_SD
) -> Residuals:
    """Predicts a job that is not in the group from its one-GPU times and some measured placements. `fitted_nodes`: only
    where more nodes are used than so many, which is what the fit has seen; 0: everywhere. `prior_sd`: of the job's
    parameters."""
    alone, given = job.alone, shots_of(job)[shots]

    def load(point: Point) -> Load:
        compute_s = alone[point.batch_per_gpu].step_s
        return Load(compute_s, compute_s, alone[job.middle_batch].step_s, job.gradient_bytes, job.tensors)

    seen = [
        Observation(group.links, placing_of(p.placement), load(p), p.step_s, p.sync_s)
        for p in job.together
        if given.have(p)
    ]
    rest = [p for p in job.together if not given.have(p) and len(p.placement) > fitted_nodes]
    mean, sd = tuple(group.prior_mean), tuple(prior_sd)
    sure = JobFit(Prior(mean, sd, (1.0, 1.0), (0.0, 0.0)), seen)
    found = [sure.predict(group.links, placing_of(p.placement), load(p)) for p in rest]
    scattered = np.array([sure.scattered(group.links, placing_of(p.placement), load(p)) for p in rest])
    errors = [np.log((e.rest_s + e.exposed_s) / p.step_s) for e, p in zip(found, rest, strict=True)]
    return Residuals(
        job.cluster,
        job.model,
        shots,
        log_error=np.array(errors),
        parameter_sd=np.sqrt(np.maximum(np.array([e.sd for e in found]) ** 2 - scattered**2, 0.0)),
        unknown=np.array([sure.unknown(placing_of(p.placement), load(p)) for p in rest]),
        nodes=np.array([len(p.placement) for p in rest]),
        fitted_nodes=fitted_nodes,
        scattered=scattered,
    )


def calibrate(residuals: Sequence[Residuals]) -> tuple[float, float]:
    """`widen` and `floor` under which 80 % intervals hold 82 % of each job's points, on average over the jobs.

    Of all such pairs, the one under which the errors are likeliest. Raises ValueError where no pair holds so many.
    """
    reaching = []
    for floor_share in (1.0, 2.0, 4.0, 8.0):
        for scale in np.geomspace(0.01, 8.0, 120):
            widen, floor = scale, scale * floor_share * 0.05
            sds = [row.sd(widen, floor) for row in residuals]
            if covered(residuals, sds) >= COVERAGE:
                surprise = _mean_of_sources(
                    residuals,
                    [np.log(sd) + 0.5 * (r.log_error / sd) ** 2 for r, sd in zip(residuals, sds, strict=True)],
                )
                reaching.append((surprise, float(widen), float(floor)))
                break
    if not reaching:
        sources = ", ".join(sorted({row.source for row in residuals}))
        raise ValueError(f"no widening of the intervals of {sources} holds {COVERAGE:.0%} of the points")
    _, widen, floor = min(reaching)
    return widen, floor


def calibrate_reach(residuals: Sequence[Residuals], widen: float, floor: float) -> float:
    """What each doubling of the nodes beyond the fitted ones adds to the standard deviation, so that intervals hold as
    many as nearer ones. `residuals` are of fits that have not seen so many nodes: a group for each number of nodes.

    Raises ValueError where no reach up to 1 holds so many."""
    groups = [row.of_nodes(int(nodes)) for row in residuals for nodes in np.unique(row.nodes)]
    for reach in np.linspace(0.0, 1.0, 101):
        sds = [row.sd(widen, floor, reach) for row in groups]
        if covered(groups, sds) >= COVERAGE:
            return float(reach)
    raise ValueError(f"no reach up to 1 holds {COVERAGE:.0%} of the points on more nodes than were fitted")


def covered(residuals: Sequence[Residuals], sds: Sequence[Array]) -> float:
    """The share of the points inside their 80 % interval: the mean over the rows of a source, and over sources."""
    inside = [np.where(np.abs(row.log_error) <= Z80 * sd, 1.0, 0.0) for row, sd in zip(residuals, sds, strict=True)]
    return _mean_of_sources(residuals, inside)


def _mean_of_sources(residuals: Sequence[Residuals], of_points: Sequence[Array]) -> float:
    rows: dict[str, list[float]] = defaultdict(list)
    for row, numbers in zip(residuals, of_points, strict=True):
        rows[row.source].append(float(np.mean(numbers)))
    return fmean(fmean(means) for means in rows.values())
