"""What came of a simulated trace."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.cluster.jobs import Job


@dataclass(frozen=True)
class Outcome:
    """What became of a job. Seconds on the clock of the trace."""

    job: Job
    first_start_s: float
    end_s: float
    held_gpu_s: float
    """GPU-seconds it held, restarts included."""
    comm_gpu_s: float
    """GPU-seconds in exposed communication."""
    starts: int
    waited_s: float
    """Without GPUs, before its first start and between."""
    ideal_s: float | None = None
    """How long it takes on the GPUs asked for, as close together as the cluster has them, if it never waits. None: the
    predictor cannot tell."""

    @property
    def completion_s(self) -> float:
        """From its submission to its end."""
        return self.end_s - self.job.submit_s


@dataclass(frozen=True)
class Simulated:
    """What came of a trace under a policy."""

    outcomes: list[Outcome]
    """In the order of their ends."""
    usage: list[tuple[float, int, int]]
    """(seconds, GPUs in use, jobs that wait), one entry for each change."""
    decisions: int
