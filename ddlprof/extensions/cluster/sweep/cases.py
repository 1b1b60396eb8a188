"""The simulations of a sweep, one for each combination of policy, load, seed and predictable share, and their
results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from ddlprof.extensions.cluster.simulation.metrics import ClusterUse, PolicyMetrics, SimulatedJob, Waited


@dataclass(frozen=True)
class SimulationCase:
    policy: str
    """The policy as typed, with its parameters."""
    seed: int = 0
    load: float | None = None
    """The GPU time that jobs ask for divided by the GPU time of the cluster between the first and the last submission;
    None: that of the trace."""
    predictable: float | None = None
    """The share of jobs that are predictable; None: the length of every job is known exactly."""


def cases(
    policies: Sequence[str], seeds: Sequence[int], loads: Sequence[float | None], predictable: Sequence[float | None]
) -> list[SimulationCase]:
    """Every combination; cases that are compared with each other are next to each other."""
    return [
        SimulationCase(policy, seed, load, share)
        for load, share, policy, seed in product(loads, predictable, policies, seeds)
    ]


@dataclass(frozen=True)
class CaseResult:
    """The result of a case: some hundred figures instead of each change of the cluster."""

    case: SimulationCase
    offered_load: float | None
    """The load of the submissions; None: all jobs are submitted at once, or their durations are not known."""
    summary: PolicyMetrics
    over_time: Sequence[ClusterUse]
    completion_cdf: Sequence[tuple[float, float]]
    """(seconds, share of jobs that completed within them)."""
    longest_waits: Sequence[Waited] = ()
    """The jobs that waited longest."""
    comm_dimensions: Mapping[str, float] = field(default_factory=dict)
    """GPU-hours of exposed communication by dimension, of jobs with a layout."""
    jobs: Sequence[SimulatedJob] = ()
    """The outcome of each job, if `Setting.keeps_jobs`."""
