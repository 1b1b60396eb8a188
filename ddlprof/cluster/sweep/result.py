"""What is kept of a simulation: some hundred figures instead of each change of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlprof.cluster.simulation.metrics import JobRow, Load, Summary
from ddlprof.cluster.sweep.cases import Case


@dataclass(frozen=True)
class CaseResult:
    """What came of a case."""

    case: Case
    offered_load: float | None
    """None: all jobs are submitted at once, or nobody measured how long they take."""
    summary: Summary
    over_time: Sequence[Load]
    completion_cdf: Sequence[tuple[float, float]]
    """(seconds, share of jobs that completed within them)."""
    jobs: Sequence[JobRow] = ()
    """Each job's outcome, if wanted."""
