"""What a cluster is like, by the jobs that it has run: load, waits, sizes, idle GPUs, fragmentation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""The largest number of GPUs of each class of jobs but the last."""
_CLASSES = 1e-9
"""Waiting jobs fit free GPUs up to such an error of sums of fractions."""


@dataclass(frozen=True)
class HeldGpus:
    """The GPUs that one job held."""

    submit_s: float
    gpus: float
    duration_s: float
    start_s: float | None = None
    """When it got them; None: the history does not tell."""
    nodes: int | None = None
    """The machines that they were on."""


@dataclass(frozen=True)
class SizeLine:
    """The jobs that asked for some number of GPUs."""

    least: int
    most: int | None
    """None: any number from `least` on."""
    jobs: int
    gpu_hours: float
    duration_median_s: float
    wait_median_s: float | None
    """None: starts are not known."""


@dataclass(frozen=True)
class ClusterProfile:
    """What a cluster is like. Shares are between 0 and 1; None: the history does not tell."""

    jobs: int
    gpus: float
    """The GPUs that the figures are for."""
    gpus_are_known: bool
    """Whether somebody has said how many there are; otherwise it is the most that were held at once."""
    first_s: float
    span_s: float
    """The seconds from the first submission to the last one."""
    gpu_hours: float
    load: float | None
    """The GPU time that jobs asked for, over that of all GPUs in the span of submissions."""
    sizes: list[SizeLine]
    wait_mean_s: float | None = None
    wait_median_s: float | None = None
    wait_p95_s: float | None = None
    most_at_once: float | None = None
    idle: float | None = None
    """The share of GPU time that nobody held, between the first and the last submission."""
    idle_while_one_fits: float | None = None
    """The part of `idle` in which a job waited that asked for no more GPUs than were free: they were on too many
    machines, or kept for somebody else."""
    spread: float | None = None
    """The share of jobs with several GPUs that had them on more machines than they needed."""
    gpus_per_machine: int | None = None
    """The most GPUs that a job had on each of its machines."""


def profile(jobs: Sequence[HeldGpus], gpus: int | None = None) -> ClusterProfile:
    """What the cluster with these jobs is like; `gpus` are all that it has, None: the most that were held at once.

    A job counts as holding its GPUs from its start on without a break. Figures that need starts are missing unless all
    jobs tell them; that of machines is over the jobs that tell theirs.
    """
    first_s, last_s = min(job.submit_s for job in jobs), max(job.submit_s for job in jobs)
    asked = sum(job.gpus * job.duration_s for job in jobs)
    are_known = all(job.start_s is not None for job in jobs)
    most = _most_at_once(jobs) if are_known else None
    size = max(gpus or 0.0, most or 0.0, 0.0 if gpus else max(job.gpus for job in jobs))
    span_s = last_s - first_s
    idle = _idle(jobs, size, first_s, last_s) if are_known and span_s > 0 else (None, None)
    waits = sorted(_wait(job) for job in jobs) if are_known else []
    per_machine, spread = _spread(jobs)
    return ClusterProfile(
        jobs=len(jobs),
        gpus=size,
        gpus_are_known=gpus is not None and size == gpus,
        first_s=first_s,
        span_s=span_s,
        gpu_hours=asked / 3600,
        load=asked / (size * span_s) if span_s > 0 and (are_known or gpus) else None,
        sizes=list(_by_size(jobs, are_known)),
        wait_mean_s=sum(waits) / len(waits) if waits else None,
        wait_median_s=_quantile(waits, 0.5),
        wait_p95_s=_quantile(waits, 0.95),
        most_at_once=most,
        idle=idle[0],
        idle_while_one_fits=idle[1],
        spread=spread,
        gpus_per_machine=per_machine,
    )


def _wait(job: HeldGpus) -> float:
    return 0.0 if job.start_s is None else max(job.start_s - job.submit_s, 0.0)


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of all is not above."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else None


def _by_size(jobs: Sequence[HeldGpus], are_known: bool) -> Iterable[SizeLine]:
    bounds = [(0, _SIZES[0]), *pairwise(_SIZES), (_SIZES[-1], None)]
    for below, most in bounds:
        found = [job for job in jobs if below < job.gpus and (most is None or job.gpus <= most)]
        if found:
            yield SizeLine(
                least=below + 1,
                most=most,
                jobs=len(found),
                gpu_hours=sum(job.gpus * job.duration_s for job in found) / 3600,
                duration_median_s=_quantile(sorted(job.duration_s for job in found), 0.5) or 0.0,
                wait_median_s=_quantile(sorted(map(_wait, found)), 0.5) if are_known else None,
            )


def _changes(jobs: Iterable[HeldGpus]) -> list[tuple[float, float, float]]:
    """(time, GPUs more in use, GPUs that a job waits for or no longer waits for), in the order of time."""
    found = []
    for job in jobs:
        start_s = job.submit_s if job.start_s is None else job.start_s
        if start_s > job.submit_s:
            found.append((job.submit_s, 0.0, job.gpus))
            found.append((start_s, 0.0, -job.gpus))
        found.append((start_s, job.gpus, 0.0))
        found.append((start_s + job.duration_s, -job.gpus, 0.0))
    return sorted(found, key=lambda change: (change[0], change[1]))


def _most_at_once(jobs: Sequence[HeldGpus]) -> float:
    now = most = 0.0
    for _, more, _ in _changes(jobs):
        now += more
        most = max(most, now)
    return round(most, 6)


def _idle(jobs: Sequence[HeldGpus], gpus: float, first_s: float, last_s: float) -> tuple[float, float]:
    """The share of GPU time that nobody held, and the part of it in which a waiting job would have fitted."""
    waiting: Counter[float] = Counter()
    used = idle = fitting = 0.0
    before_s = first_s
    for now_s, more, waits in [*_changes(jobs), (last_s, 0.0, 0.0)]:
        passed_s = max(min(now_s, last_s) - before_s, 0.0)
        free = max(gpus - used, 0.0)
        idle += passed_s * free
        if free and waiting and min(waiting) <= free + _CLASSES:
            fitting += passed_s * free
        before_s = max(before_s, min(now_s, last_s))
        used += more
        if waits:
            waiting[abs(waits)] += 1 if waits > 0 else -1
            if not waiting[abs(waits)]:
                del waiting[abs(waits)]
    total = gpus * (last_s - first_s)
    return idle / total, fitting / total


def _spread(jobs: Iterable[HeldGpus]) -> tuple[int | None, float | None]:
    """The most GPUs of a machine, as far as jobs tell, and the share of jobs on more machines than they needed."""
    several = [(job.gpus, job.nodes) for job in jobs if job.nodes is not None]
    if not several:
        return None, None
    per_machine = max(math.ceil(gpus / nodes) for gpus, nodes in several)
    wide = [(gpus, nodes) for gpus, nodes in several if gpus > 1]
    beyond = sum(nodes > math.ceil(gpus / per_machine) for gpus, nodes in wide)
    return per_machine, beyond / len(wide) if wide else None
