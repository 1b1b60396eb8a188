"""What is kept of a simulation: its figures, how the cluster was used over time, and each job's outcome if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlprof.cluster.machines import Cluster
from ddlprof.cluster.simulation.core import Outcome, Simulated
from ddlprof.cluster.sweep.cases import Case

CURVE_POINTS = 240
"""Of utilisation over time and of the distribution of completion times: more than a page has pixels for."""


@dataclass(frozen=True)
class Figures:
    """The figures of one simulation. None: not known."""

    makespan_s: float
    """From the first submission to the last end."""
    mean_completion_s: float
    """Of jobs, from their submission to their end."""
    median_completion_s: float
    p95_completion_s: float
    mean_queueing_s: float
    """Without GPUs, before the first start and between."""
    gpu_h: float
    """GPU-hours held, restarts included."""
    comm_gpu_h: float
    """GPU-hours in exposed communication."""
    utilisation: float
    """GPU-hours held over those there were until the makespan's end."""
    restarts: int
    """Starts of jobs after their first."""


@dataclass(frozen=True)
class CaseResult:
    """What came of a case."""

    case: Case
    figures: Figures
    load: float | None
    """As offered; None: all jobs are submitted at once."""
    use: list[tuple[float, float, float]]
    """(seconds since the first submission, share of the GPUs in use, jobs that wait), each the mean since the one
    before."""
    completion_s: list[float]
    """The completion times at equal steps of the share of jobs, shortest first."""
    outcomes: Sequence[Outcome] = ()
    """Each job's, if wanted."""


def figures(simulated: Simulated, cluster: Cluster) -> Figures:
    """The figures of a simulation with at least one job."""
    outcomes = simulated.outcomes
    completion_s = np.array([outcome.completion_s for outcome in outcomes])
    makespan_s = max(outcome.end_s for outcome in outcomes) - min(outcome.job.submit_s for outcome in outcomes)
    gpu_h = sum(outcome.held_gpu_s for outcome in outcomes) / 3600
    return Figures(
        makespan_s=makespan_s,
        mean_completion_s=float(completion_s.mean()),
        median_completion_s=float(np.median(completion_s)),
        p95_completion_s=float(np.quantile(completion_s, 0.95)),
        mean_queueing_s=float(np.mean([outcome.waited_s for outcome in outcomes])),
        gpu_h=gpu_h,
        comm_gpu_h=sum(outcome.comm_gpu_s for outcome in outcomes) / 3600,
        utilisation=gpu_h * 3600 / (cluster.gpus * makespan_s),
        restarts=sum(outcome.starts - 1 for outcome in outcomes),
    )


def use_over_time(simulated: Simulated, cluster: Cluster) -> list[tuple[float, float, float]]:
    """`CaseResult.use`: time-weighted means over equal parts of the makespan."""
    changes = np.array([(at_s, gpus, waiting) for at_s, gpus, waiting in simulated.usage], dtype=float)
    first_s, last_s = changes[0, 0], max(outcome.end_s for outcome in simulated.outcomes)
    edges = np.linspace(first_s, last_s, CURVE_POINTS + 1)
    lasts_s = np.diff(changes[:, 0], append=last_s)
    means = []
    for column in (1, 2):
        so_far = np.concatenate(([0.0], np.cumsum(changes[:, column] * lasts_s)))
        at_edges = np.interp(edges, np.append(changes[:, 0], last_s), so_far)
        means.append(np.diff(at_edges) / np.diff(edges))
    return [
        (float(edge) - first_s, float(gpus) / cluster.gpus, float(waiting))
        for edge, gpus, waiting in zip(edges[1:], *means, strict=True)
    ]


def completion_quantiles(simulated: Simulated) -> list[float]:
    """`CaseResult.completion_s`."""
    found = [outcome.completion_s for outcome in simulated.outcomes]
    return [float(each) for each in np.quantile(found, np.linspace(0, 1, min(len(found), CURVE_POINTS)))]
