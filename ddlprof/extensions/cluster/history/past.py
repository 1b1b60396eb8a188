"""Jobs that a cluster has run, what a history has beside them, and the columns of the file that
`ddlprof.extensions.cluster.trace` reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ddlprof.base.units import count
from ddlprof.extensions.cluster.machines import MAX_GPUS
from ddlprof.extensions.cluster.trace import MAX_DURATION_S, MAX_SUBMIT_S

_LONGEST_NAME = 180
"""The most characters of a name of a job; the file may have 200."""
COLUMNS = (
    "job_id", "submit_s", "gpus", "duration_s", "model", "start_s", "nodes", "starts", "state", "user", "name", "queue",
    "gpu_model",
)  # fmt: skip
"""The columns of the file of jobs; those behind `nodes` are for people."""


@dataclass(frozen=True)
class PastJob:
    """A job as a scheduler remembers it. Times are seconds on the history's clock; None: not known, or not yet."""

    job_id: str
    submit_s: float
    gpus: float
    """The GPUs that it held; a fraction where jobs share GPUs."""
    start_s: float | None = None
    """When it got its GPUs for the first time."""
    end_s: float | None = None
    held_s: float | None = None
    """The seconds that it held its GPUs, all its starts together; None: from start to end."""
    nodes: int | None = None
    """The machines that it ran on."""
    starts: int = 1
    state: str = ""
    user: str = ""
    name: str = ""
    queue: str = ""
    """The partition, the virtual cluster or the namespace."""
    model: str = ""
    gpu_model: str = ""

    @property
    def duration_s(self) -> float | None:
        """The seconds that it held its GPUs; None: it has not started, or not ended."""
        if self.held_s is not None or self.start_s is None or self.end_s is None:
            return self.held_s
        return self.end_s - self.start_s


@dataclass
class KeptHistory:
    """What is kept of a history, and what is not."""

    jobs: list[PastJob] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """How many things were left out, by what they are: `jobs without GPUs`, said behind the number."""
    joined: Counter[str] = field(default_factory=Counter)
    """How many things were changed, by what was done."""

    def notes(self) -> list[str]:
        """One line for each kind of thing that is not in the file as it was in the history."""
        left = [f"left out {what}: {number:,}" for what, number in self.left_out.items() if number]
        return [*left, *(f"{what}: {count(number, 'job')}" for what, number in self.joined.items() if number)]


NO_GPUS = "without GPUs"
NEVER_STARTED = "that never started, or still wait"
STILL_RUN = "that still run: their length is not known"
NO_TIME = "that ended as they started"
BACKWARDS = "whose end is before their start, or their start before their submission"
TOO_LARGE = "that cannot be, as of more than a million GPUs or 30 years"
OTHER_QUEUES = "of other queues"


def kept(jobs: Iterable[PastJob], queues: frozenset[str] = frozenset()) -> KeptHistory:
    """The jobs that can be simulated, in the order of their submission; empty `queues` are all."""
    found = KeptHistory()
    for job in jobs:
        why = _why_not(job, queues)
        if why is None:
            found.jobs.append(job)
        else:
            found.left_out[f"jobs {why}"] += 1
    found.jobs.sort(key=lambda job: job.submit_s)
    found.joined["started more than once, their times added"] = sum(job.starts > 1 for job in found.jobs)
    return found


def _why_not(job: PastJob, queues: frozenset[str]) -> str | None:
    if queues and job.queue not in queues:
        return OTHER_QUEUES
    if job.start_s is None and job.held_s is None:
        return NEVER_STARTED
    if job.gpus <= 0:
        return NO_GPUS
    duration_s = job.duration_s
    if duration_s is None:
        return STILL_RUN
    if duration_s < 0 or (job.start_s is not None and job.start_s < job.submit_s):
        return BACKWARDS
    if duration_s == 0:
        return NO_TIME
    times = (job.submit_s, job.start_s or 0.0)
    can_be = duration_s <= MAX_DURATION_S and max(times) <= MAX_SUBMIT_S and max(job.gpus, job.nodes or 1) <= MAX_GPUS
    return None if can_be else TOO_LARGE


def with_unique_names(jobs: Iterable[PastJob]) -> Iterator[PastJob]:
    """The same jobs; the second of a name is called `NAME#2`, one without a name `job`, and long names are cut."""
    seen: Counter[str] = Counter()
    for job in jobs:
        name = job.job_id[:_LONGEST_NAME] or "job"
        seen[name] += 1
        number = seen[name]
        yield replace(job, job_id=name if number == 1 else f"{name}#{number}")
