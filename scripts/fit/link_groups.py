"""Fits links and jobs to the published placements, and tests the fit on jobs whose model it has not seen.

For each group of clusters with equal links, the properties of the links and the eight parameters of every job are
fitted together: robust least squares on the logarithm of step time and on exposed communication, with weak priors.
What jobs have in common becomes the prior of a job that nothing is known of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from recommender.communication.coefficients import Prior
from recommender.communication.exposed import Array, Link, Links, Load, Placing, placing_of, step_s
from recommender.communication.job_parameters import JobFit, Observation
from recommender.estimate import Z80
from scripts.fit.placements import FULL_NODE, Point, PublishedJob

GROUPS = {"flow_capped": ("aws",), "ethernet": ("rtx",), "rdma": ("dgx", "dgx-ext")}
"""Clusters fitted together, by the network between their machines."""

PRIOR_MEAN = np.array([0, 0, 0.7, np.log(0.15), np.log(0.02), np.log(0.03), -0.03, 0.0])
PRIOR_SD = np.array([0.4, 0.4, 0.3, 0.7, 1.0, 1.0, 0.1, 0.2])
"""The prior of the parameters of a job, weak: overlap with most of the backward pass, a last bucket of a seventh of the
gradients, and small offsets. What the jobs of a group have in common moves the mean half way."""
LINK_START = {
    "flow_capped": (4.0, 30e-6, 0.4, 0.45, 300e-6, 0.0, -0.4, 0.05),
    "ethernet": (1.0, 50e-6, 0.2, 0.8, 200e-6, 0.0, 0.0, 0.0),
    "rdma": (30.0, 30e-6, 0.2, 30.0, 30e-6, 0.0, 0.0, 0.0),
}
"""Inside: GB/s, launch, its growth; between: the same, three nodes, four nodes."""
LINK_SD = np.array([1, 0.7, 0.3, 1, 0.7, 0.5, 0.15, 0.05])
COVERAGE = 0.82
"""Aimed at by the calibration of 80 % intervals: a little more, since jobs differ more than these five do."""
COMPUTE_SD = 0.03
"""The spread of a measured computation, which `recommender.compute.micro_batch` adds."""
_LOGARITHMIC = [0, 1, 3, 4]
_NOISE = 0.04
"""What a step time scatters by around a good fit."""


@dataclass(frozen=True)
class Group:
    """Fitted links of one group of clusters, and the parameters of its jobs."""

    links: Links
    jobs: dict[PublishedJob, Array]

    @property
    def prior_mean(self) -> Array:
        """Half way between the weak prior and the median job."""
        return np.asarray(0.5 * PRIOR_MEAN + 0.5 * np.median(np.array(list(self.jobs.values())), axis=0))


@dataclass(frozen=True)
class Table:
    """The points of a job as arrays."""

    at: Placing
    load: Load
    step_s: Array
    sync_s: Array


def table_of(job: PublishedJob) -> Table:
    """All points with more than one GPU."""
    points, alone = job.together, job.alone
    placements = [point.placement for point in points]

    def column(values: Sequence[float]) -> Array:
        return np.array(values, dtype=float)

    compute_s = column([alone[point.batch_per_gpu].step_s for point in points])
    return Table(
        at=Placing(
            column([sum(p) for p in placements]),
            column([len(p) for p in placements]),
            column([max(p) for p in placements]),
        ),
        load=Load(compute_s, compute_s, alone[job.middle_batch].step_s, job.gradient_bytes, job.tensors),
        step_s=column([point.step_s for point in points]),
        sync_s=column([point.sync_s for point in points]),
    )


def links_from(numbers: Array) -> Links:
    """Makes links from the numbers of `LINK_START`, logarithms where `_LOGARITHMIC` says so."""
    values = numbers.copy()
    values[_LOGARITHMIC] = np.exp(values[_LOGARITHMIC])
    return Links(Link(*map(float, values[:3])), Link(*map(float, values[3:])))


def fit_group(network: str, jobs: Sequence[PublishedJob]) -> Group:
    """Links and jobs together."""
    start = np.array(LINK_START[network])
    start[_LOGARITHMIC] = np.log(start[_LOGARITHMIC])
    tables = [table_of(job) for job in jobs]

    def residuals(numbers: Array) -> Array:
        links, z = links_from(numbers[: len(start)]), numbers[len(start) :].reshape(len(jobs), -1)
        parts = [(numbers[: len(start)] - start) / LINK_SD, ((z - PRIOR_MEAN) / PRIOR_SD).ravel()]
        for table, parameters in zip(tables, z, strict=True):
            rest, exposed = step_s(parameters, links, table.at, table.load)
            weight = 6 / np.sqrt(len(table.step_s)) / _NOISE
            parts.append(weight * np.log((rest + exposed) / table.step_s))
            parts.append(weight / 2 * (exposed - table.sync_s) / table.step_s)
        return np.concatenate(parts)

    guess = np.concatenate([start, np.tile(PRIOR_MEAN, len(jobs))])
    found = least_squares(residuals, guess, loss="soft_l1", max_nfev=60).x
    rows = found[len(start) :].reshape(len(jobs), -1)
    return Group(links_from(found[: len(start)]), dict(zip(jobs, rows, strict=True)))


@dataclass(frozen=True)
class Residuals:
    """The residuals of a job whose model was left out of the fit, over the points that were not given as measured."""

    job: PublishedJob
    shots: str
    log_error: Array
    parameter_sd: Array
    unknown: Array
    """Share of the uncertainty that no measured point close by takes away."""

    @property
    def median_error(self) -> float:
        """Median of the absolute relative error of step time."""
        return float(np.median(np.abs(np.expm1(self.log_error))))


def shots_of(job: PublishedJob) -> dict[str, list[tuple[int, ...]]]:
    """The multi-GPU placements that are measured, at the middle batch."""
    full = FULL_NODE[job.cluster]
    return {"zero": [], "few": [(full,), (1, 1)], "second": [(full,), (1, 1), (full, full)]}


def residuals_of(job: PublishedJob, shots: str, group: Group) -> Residuals:
    """Predicts a job that is not in the group from its one-GPU times and some measured placements."""
    alone, placements = job.alone, shots_of(job)[shots]

    def load(point: Point) -> Load:
        compute_s = alone[point.batch_per_gpu].step_s
        return Load(compute_s, compute_s, alone[job.middle_batch].step_s, job.gradient_bytes, job.tensors)

    def given(point: Point) -> bool:
        return point.placement in placements and point.batch_per_gpu == job.middle_batch

    seen = [
        Observation(group.links, placing_of(p.placement), load(p), p.step_s, p.sync_s) for p in job.together if given(p)
    ]
    rest = [point for point in job.together if not given(point)]
    mean, sd = tuple(group.prior_mean), tuple(PRIOR_SD)
    sure = JobFit(Prior(mean, sd, (1.0, 1.0), (0.0, 0.0)), seen)
    found = [sure.predict(group.links, placing_of(p.placement), load(p)) for p in rest]
    unknown = [sure.unknown(placing_of(p.placement), load(p)) for p in rest]
    errors = [np.log((e.rest_s + e.exposed_s) / p.step_s) for e, p in zip(found, rest, strict=True)]
    return Residuals(job, shots, np.array(errors), np.array([e.sd for e in found]), np.array(unknown))


def calibrate(residuals: Sequence[Residuals]) -> tuple[float, float]:
    """`widen` and `floor` under which 80 % intervals hold 82 % of each job's points, on average over the jobs.

    Of all such pairs, the one under which the errors are likeliest.
    """
    best = (np.inf, 1.0, 0.1)
    for floor_share in (1.0, 2.0, 4.0, 8.0):
        for scale in np.geomspace(0.01, 8.0, 120):
            widen, floor = scale, scale * floor_share * 0.05
            sds = [np.hypot(np.hypot(widen * r.parameter_sd, floor * r.unknown), COMPUTE_SD) for r in residuals]
            held = [np.mean(np.abs(r.log_error) <= Z80 * sd) for r, sd in zip(residuals, sds, strict=True)]
            if np.mean(held) >= COVERAGE:
                surprise = [
                    np.mean(np.log(sd) + 0.5 * (r.log_error / sd) ** 2) for r, sd in zip(residuals, sds, strict=True)
                ]
                best = min(best, (float(np.mean(surprise)), float(widen), float(floor)))
                break
    return best[1], best[2]
