"""The metrics of a policy in a simulation: times, queueing, GPU-hours, fairness, and use of the cluster over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ddlprof.extensions.cluster.jobs import JobOutcome, Simulated

_HOUR_S = 3600.0


@dataclass(frozen=True)
class PolicyMetrics:
    """The metrics of one policy. None: not known, because the duration of the jobs alone is not known."""

    jobs: int
    makespan_s: float
    """The seconds from the first submission to the last end."""
    completion_mean_s: float
    """The mean seconds from a job's submission to its end."""
    completion_median_s: float
    completion_p95_s: float
    wait_mean_s: float
    """The mean seconds without GPUs, before the first start and between starts."""
    wait_median_s: float
    wait_p95_s: float
    gpu_hours: float
    """The GPU-hours held by jobs, restarts included."""
    comm_gpu_hours: float
    """The part of `gpu_hours` in exposed communication."""
    used: float
    """The share of the cluster's GPUs that was held, over the makespan."""
    stops: int
    """The number of times that jobs were stopped or moved."""
    jain: float | None
    """Jain's index of the slowdowns: 1 if all jobs are slowed down alike, 1/n if one bears it all."""
    worst_fairness: float | None
    """The largest finish-time fairness of a job."""
    unfair: float | None
    """The share of jobs with a finish-time fairness above 1: an equal share of the cluster would have been better for
    them."""
    wait_longest_s: float = 0.0
    """The most seconds that a job was without GPUs."""


def summary(simulated: Simulated, gpus: int) -> PolicyMetrics:
    """The metrics of a simulation of a cluster with so many GPUs. At least one job has ended."""
    outcomes = simulated.outcomes
    completion = _column([outcome.completion_s for outcome in outcomes])
    waited = _column([outcome.waited_s for outcome in outcomes])
    makespan_s = max(each.end_s for each in outcomes) - min(each.job.submit_s for each in outcomes)
    held_s = sum(outcome.held_gpu_s for outcome in outcomes)
    shares = fairness(outcomes, gpus)
    slow = slowdowns(outcomes)
    return PolicyMetrics(
        jobs=len(outcomes),
        makespan_s=makespan_s,
        completion_mean_s=float(completion.mean()),
        completion_median_s=float(np.median(completion)),
        completion_p95_s=float(np.quantile(completion, 0.95)),
        wait_mean_s=float(waited.mean()),
        wait_median_s=float(np.median(waited)),
        wait_p95_s=float(np.quantile(waited, 0.95)),
        gpu_hours=held_s / _HOUR_S,
        comm_gpu_hours=sum(outcome.comm_gpu_s for outcome in outcomes) / _HOUR_S,
        used=held_s / (gpus * makespan_s),
        stops=sum(outcome.starts - 1 for outcome in outcomes),
        jain=None if slow is None else jain_index(slow),
        worst_fairness=None if shares is None else float(shares.max()),
        unfair=None if shares is None else float((shares > 1).mean()),
        wait_longest_s=float(waited.max()),
    )


@dataclass(frozen=True)
class Waited:
    """A job that waited."""

    job_id: str
    gpus: int
    waited_s: float
    """The seconds without GPUs, before its first start and between starts."""
    slowdown: float | None


def longest_waits(simulated: Simulated, most: int = 5) -> list[Waited]:
    """The jobs that waited longest, the longest wait first."""
    longest = sorted(simulated.outcomes, key=lambda outcome: (-outcome.waited_s, outcome.job.job_id))[:most]
    return [
        Waited(
            outcome.job.job_id,
            outcome.job.gpus,
            outcome.waited_s,
            None if outcome.ideal_s is None else outcome.completion_s / outcome.ideal_s,
        )
        for outcome in longest
        if outcome.waited_s > 0
    ]


def comm_by_dimension(simulated: Simulated) -> dict[str, float]:
    """The GPU-hours of exposed communication of all jobs with a layout, by dimension; empty where none has one."""
    found: dict[str, float] = {}
    for outcome in simulated.outcomes:
        for name, gpu_s in outcome.comm_dimensions.items():
            found[name] = found.get(name, 0.0) + gpu_s / _HOUR_S
    return found


def slowdowns(outcomes: Sequence[JobOutcome]) -> NDArray[np.float64] | None:
    """The completion time divided by the time that the job takes alone on the GPUs it asks for.

    Below 1 if it was given more. None: the latter is not known.
    """
    ideal = _ideal(outcomes)
    return None if ideal is None else _column([outcome.completion_s for outcome in outcomes]) / ideal


def jain_index(values: NDArray[np.float64]) -> float:
    """(sum x)^2 / (n sum x^2). Source: Jain, Chiu and Hawe, A quantitative measure of fairness, DEC-TR-301, 1984."""
    return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


def fairness(outcomes: Sequence[JobOutcome], gpus: int) -> NDArray[np.float64] | None:
    """Each job's finish-time fairness: its completion time over that on its equal share of the cluster.

    The ratio is that of Themis (Mahajan et al., NSDI 2020). With N jobs in the cluster on average between a job's
    submission and its end, its share is gpus / N; on fewer GPUs than it asks for it takes as much longer, and on more
    it takes no less (the contention of Shockwave, Zheng et al., NSDI 2023).
    """
    ideal = _ideal(outcomes)
    if ideal is None:
        return None
    submit = _column([outcome.job.submit_s for outcome in outcomes])
    end = _column([outcome.end_s for outcome in outcomes])
    asked = _column([outcome.job.gpus for outcome in outcomes])
    present = _present(submit, end)
    return (end - submit) / (ideal * np.maximum(1.0, asked * present / gpus))


def _present(submit: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean number of jobs between a job's submission and its end, itself included."""
    times = np.concatenate([submit, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    count = np.cumsum(np.where(order < len(submit), 1.0, -1.0))
    job_s = np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(times))])
    span_s = end - submit
    inside = np.interp(end, times, job_s) - np.interp(submit, times, job_s)
    return np.where(span_s > 0, inside / np.where(span_s > 0, span_s, 1.0), 1.0)


def _ideal(outcomes: Sequence[JobOutcome]) -> NDArray[np.float64] | None:
    known = [outcome.ideal_s for outcome in outcomes if outcome.ideal_s is not None]
    return _column(known) if len(known) == len(outcomes) else None


def _column(values: Sequence[float]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


@dataclass(frozen=True)
class SimulatedJob:
    """One job as a row of a table."""

    job_id: str
    model: str | None
    gpus: int
    submit_s: float
    first_start_s: float
    end_s: float
    completion_s: float
    waited_s: float
    ideal_s: float | None
    slowdown: float | None
    finish_time_fairness: float | None
    gpu_hours: float
    comm_gpu_hours: float
    stops: int
    comm_dimensions: str | None = None
    """`comm_gpu_hours` by the dimension of its layout, as `tensor=1.5;data=0.2`."""


JOB_COLUMNS = tuple(field.name for field in fields(SimulatedJob))


def job_rows(simulated: Simulated, gpus: int) -> list[SimulatedJob]:
    """The outcome of each job, in the order of submission."""
    outcomes = simulated.outcomes
    slow, shares = slowdowns(outcomes), fairness(outcomes, gpus)
    rows = [
        SimulatedJob(
            job_id=outcome.job.job_id,
            model=outcome.job.model,
            gpus=outcome.job.gpus,
            submit_s=outcome.job.submit_s,
            first_start_s=outcome.first_start_s,
            end_s=outcome.end_s,
            completion_s=outcome.completion_s,
            waited_s=outcome.waited_s,
            ideal_s=outcome.ideal_s,
            slowdown=None if slow is None else float(slow[place]),
            finish_time_fairness=None if shares is None else float(shares[place]),
            gpu_hours=outcome.held_gpu_s / _HOUR_S,
            comm_gpu_hours=outcome.comm_gpu_s / _HOUR_S,
            stops=outcome.starts - 1,
            comm_dimensions=";".join(f"{name}={gpu_s / _HOUR_S:.6g}" for name, gpu_s in outcome.comm_dimensions.items())
            or None,
        )
        for place, outcome in enumerate(outcomes)
    ]
    return sorted(rows, key=lambda row: (row.submit_s, row.job_id))


def completion_cdf(simulated: Simulated, points: int = 200) -> list[tuple[float, float]]:
    """(seconds, share of jobs that completed within them), at most `points` pairs, the last one with all jobs."""
    times = np.sort([outcome.completion_s for outcome in simulated.outcomes])
    count = len(times)
    picked = np.unique(np.linspace(0, count - 1, min(points, count)).round().astype(int))
    return [(float(times[place]), (place + 1) / count) for place in picked.tolist()]


@dataclass(frozen=True)
class ClusterUse:
    """The mean use of the cluster in one interval of time."""

    begin_s: float
    end_s: float
    used_gpus: float
    waiting_jobs: float


def over_time(simulated: Simulated, pieces: int = 200) -> list[ClusterUse]:
    """The use of the cluster in equally long intervals from the first submission to the last end."""
    times = np.array([time_s for time_s, _, _ in simulated.usage])
    begin_s, end_s = float(times[0]), float(times[-1])
    if end_s <= begin_s:
        return []
    edges = np.linspace(begin_s, end_s, pieces + 1)
    means = []
    for column in (1, 2):
        values = np.array([float(entry[column]) for entry in simulated.usage])
        summed = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(times))])
        means.append(np.diff(np.interp(edges, times, summed)) / np.diff(edges))
    return [
        ClusterUse(float(edges[piece]), float(edges[piece + 1]), float(means[0][piece]), float(means[1][piece]))
        for piece in range(pieces)
    ]
