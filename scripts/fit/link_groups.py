"""Fits links and jobs to the published placements.

For each group of clusters with equal links, the properties of the links and the nine parameters of every job are
fitted together: robust least squares on the logarithm of step time and on exposed communication, with weak priors.
What jobs have in common becomes the prior of a job that nothing is known of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from ddlprof.recommender.communication.exposed import Array, Link, Links, Load, Placing, step_s
from scripts.fit.placements import PublishedJob

GROUPS = {"flow_capped": ("aws",), "ethernet": ("rtx",), "rdma": ("dgx", "dgx-ext")}
"""Clusters fitted together, by the network between their machines."""

PRIOR_MEAN = np.array([0, 0, 0.7, np.log(0.15), np.log(0.02), np.log(0.03), -0.03, 0.0, 0.0])
PRIOR_SD = np.array([0.4, 0.4, 0.3, 0.7, 1.0, 1.0, 0.1, 0.2, 0.3])
"""The prior of the parameters of a job, weak: overlap with most of the backward pass, a last bucket of a seventh of the
gradients, and small offsets. What the jobs of a group have in common moves the mean half way."""
JOB_SD = np.array([0.3, 0.3, 0.2, 0.4, 0.6, 0.6, 0.06, 0.1, 0.2])
"""The prior of a job of which a few placements are measured: about the spread of the fitted jobs (median absolute
deviations within groups, times 1.48: 0.07, 0.18, 0, 0.67, 0.9, 0.6, 0.06, 0.06)."""
LINK_START = {
    "flow_capped": (4.0, 30e-6, 0.4, 2.0, 200e-6),
    "ethernet": (1.0, 50e-6, 0.2, 2.0, 200e-6),
    "rdma": (100.0, 50e-6, 0.2, 100.0, 50e-6, 0.0),
}
"""Inside: GB/s, launch, its growth; between over TCP: GB/s of the machine, launch; over RDMA as inside."""
LINK_SD = {
    "flow_capped": (1, 0.7, 0.3, 1, 0.7),
    "ethernet": (1, 0.7, 0.3, 1, 0.7),
    "rdma": (0.25, 0.7, 0.3, 0.25, 0.7, 0.5),
}
"""Over NVLink and RDMA the placements tell launches, not bandwidths (100 GB/s fits as well as 36): the bandwidth is
that of buckets of 25 MB in published tables of collectives, less what a busy GPU loses."""
LINE_GBPS = {"flow_capped": 5.0, "ethernet": 50.0}
"""What the line gives a flow over TCP. AWS caps one flow at 5 Gbit/s, and at 10 within a placement group; the steps on
two nodes and on three tell of 5."""
HOP_GROWTH = 0.5
"""Half of a launch between two nodes is its hop. Of 0.5 and 1 (nothing but hops), the better one, clusters left out."""
_LOGARITHMIC = [0, 1, 3, 4]
_GROWTHS = {"flow_capped": [2], "ethernet": [2], "rdma": [2, 5]}
_NOISE = 0.04
"""What a step time scatters by around a good fit."""


@dataclass(frozen=True)
class Group:
    """Fitted links of one group of clusters, and the parameters of its jobs."""

    links: Links
    jobs: dict[PublishedJob, Array]
    prior_mean: Array
    """Of a job that nothing is known of."""


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


def links_from(numbers: Array, network: str) -> Links:
    """Makes links from the numbers of `LINK_START`, logarithms where `_LOGARITHMIC` says so."""
    values = numbers.copy()
    values[_LOGARITHMIC] = np.exp(values[_LOGARITHMIC])
    numbers_between = [float(number) for number in values[3:]]
    between = Link(*numbers_between) if network == "rdma" else tcp_link(network, *numbers_between)
    return Links(Link(*map(float, values[:3])), between)


def tcp_link(network: str, host_gb_s: float, launch_s: float) -> Link:
    """A link over TCP: a byte costs what the machine takes to bring it to the network, and what the line takes.
    Launches grow with every hop of the ring between machines."""
    host, line = 1.0 / host_gb_s, 8.0 / LINE_GBPS[network]
    flows = 2.0 if network == "flow_capped" else 1.0
    return Link(1.0 / (host + line), launch_s, 0.0, hop_growth=HOP_GROWTH, line_share=line / (host + line), flows=flows)


def _start(network: str) -> Array:
    numbers = np.array(LINK_START[network])
    numbers[_LOGARITHMIC] = np.log(numbers[_LOGARITHMIC])
    return numbers


def fit_group(network: str, jobs: Sequence[PublishedJob]) -> Group:
    """Links and jobs together."""
    start = _start(network)
    tables = [table_of(job) for job in jobs]

    def residuals(numbers: Array) -> Array:
        links, z = links_from(numbers[: len(start)], network), numbers[len(start) :].reshape(len(jobs), -1)
        parts = [(numbers[: len(start)] - start) / LINK_SD[network], ((z - PRIOR_MEAN) / PRIOR_SD).ravel()]
        for table, parameters in zip(tables, z, strict=True):
            rest, exposed = step_s(parameters, links, table.at, table.load)
            weight = 6 / np.sqrt(len(table.step_s)) / _NOISE
            parts.append(weight * np.log((rest + exposed) / table.step_s))
            parts.append(weight / 2 * (exposed - table.sync_s) / table.step_s)
        return np.concatenate(parts)

    guess = np.concatenate([start, np.tile(PRIOR_MEAN, len(jobs))])
    least = np.full(len(guess), -np.inf)
    least[_GROWTHS[network]] = 0.0  # more GPUs do not make a launch cheaper
    found = least_squares(
        residuals, np.maximum(guess, least + 1e-6), bounds=(least, np.inf), loss="soft_l1", max_nfev=60
    ).x
    rows = found[len(start) :].reshape(len(jobs), -1)
    half_way = 0.5 * PRIOR_MEAN + 0.5 * np.median(rows, axis=0)  # between the weak prior and the median job
    return Group(links_from(found[: len(start)], network), dict(zip(jobs, rows, strict=True)), half_way)
