"""A job of a trace: its state while the cluster is simulated, its outcome, and forecasts of its length."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ddlprof.extensions.cluster.machines import Allocation


@dataclass(frozen=True)
class Job:
    """A training job: how much work it is and what it asks for. Independent of any policy."""

    job_id: str
    submit_s: float
    gpus: int
    """GPUs asked for, all at once."""
    samples: float
    """The samples that it trains with until it ends."""
    batch: int
    """The samples of one update over all GPUs."""
    step_s: float | None = None
    """The measured seconds of one update on the GPUs asked for, consolidated; None: it is not measured but predicted.
    """
    model: str | None = None
    min_gpus: int = 1
    """The fewest GPUs that a policy may choose, where there is a `max_gpus`."""
    max_gpus: int | None = None
    """The most GPUs that a policy may choose. This and the three fields below bound an elastic policy. None: the job
    runs as it asked."""
    min_batch: int | None = None
    max_batch: int | None = None
    max_batch_per_gpu: int | None = None
    """The samples that fit the memory of one GPU in one forward pass."""
    copy_gpus: int = 1
    """The GPUs that one copy of its model is divided over, which share their samples: it runs on multiples of them."""

    @property
    def fewest_gpus(self) -> int:
        """The fewest GPUs it runs on: those asked for, all or none, unless a policy may choose."""
        return self.gpus if self.max_gpus is None else self.min_gpus

    @property
    def most_gpus(self) -> int:
        """The most GPUs it runs on."""
        return self.gpus if self.max_gpus is None else self.max_gpus

    @property
    def ideal_s(self) -> float | None:
        """Its duration on the GPUs asked for without any waiting, as measured."""
        return None if self.step_s is None else self.samples / self.batch * self.step_s


@dataclass
class JobState:
    """The state of a job, in seconds of the simulated clock. Policies read it; only the simulation changes it."""

    job: Job
    changed_s: float
    """When the fields below were last updated. From then on `done_at` extrapolates the progress."""
    done_samples: float = 0.0
    samples_per_s: float = 0.0
    """0 while it waits."""
    works_from_s: float = 0.0
    """When it began, or will begin, to make progress on its allocation, which is after its restart."""
    held_gpu_s: float = 0.0
    """GPU-seconds held, restarts included: its attained service."""
    comm_gpu_s: float = 0.0
    """GPU-seconds in exposed communication."""
    comm_share: float = 0.0
    """The share of its present step in exposed communication."""
    comm_dimensions: dict[str, float] = field(default_factory=dict)
    """`comm_gpu_s` by dimension, if it has a layout."""
    dimension_shares: dict[str, float] = field(default_factory=dict)
    """`comm_share` by dimension."""
    allocation: Allocation | None = None
    assigned_s: float = 0.0
    """When it was last given GPUs or its lease was renewed; before that, when it was submitted."""
    lease_end_s: float = 0.0
    waited_s: float = 0.0
    """The seconds without GPUs so far, except for the present wait."""
    starts: int = 0
    first_start_s: float | None = None
    expected_samples: float | None = None
    """A forecast of the total number of samples that it needs; None: it is not predictable."""

    def done_at(self, now_s: float) -> float:
        """The samples done at `now_s`."""
        # Called more often than anything else, so it calls no function itself.
        since_s = self.works_from_s if self.works_from_s > self.changed_s else self.changed_s
        return self.done_samples + (now_s - since_s) * self.samples_per_s if now_s > since_s else self.done_samples

    def held_at(self, now_s: float) -> float:
        """The GPU-seconds held at `now_s`."""
        gpus = self.allocation.gpus if self.allocation is not None else 0
        return self.held_gpu_s + (now_s - self.changed_s) * gpus

    def comm_at(self, now_s: float) -> float:
        """The GPU-seconds in exposed communication at `now_s`."""
        return self.comm_gpu_s + self._working_gpu_s(now_s) * self.comm_share

    def comm_dimensions_at(self, now_s: float) -> dict[str, float]:
        """`comm_at` by dimension; empty without a layout."""
        if not self.dimension_shares:
            return self.comm_dimensions
        working_gpu_s, before = self._working_gpu_s(now_s), self.comm_dimensions
        more = {name: working_gpu_s * share for name, share in self.dimension_shares.items()}
        return {name: before.get(name, 0.0) + more.get(name, 0.0) for name in {**before, **more}}

    def _working_gpu_s(self, now_s: float) -> float:
        """The GPU-seconds of progress since the fields were last updated."""
        gpus = self.allocation.gpus if self.allocation is not None else 0
        return max(now_s - max(self.works_from_s, self.changed_s), 0.0) * gpus

    def remaining_at(self, now_s: float) -> float | None:
        """A forecast of the samples that it still needs, at least one update; None: there is none."""
        if self.expected_samples is None:
            return None
        return max(self.expected_samples - self.done_at(now_s), float(self.job.batch))

    def may_move(self, now_s: float) -> bool:
        """Whether it may be preempted: no lease protects its GPUs."""
        return self.lease_end_s <= now_s


def model_key(name: str) -> str:
    """A name without case and punctuation, so that ResNet-50 and resnet50 are one model."""
    return "".join(filter(str.isalnum, name.lower()))


@dataclass(frozen=True)
class JobOutcome:
    """What became of a job. Times are seconds on the clock of the trace."""

    job: Job
    first_start_s: float
    end_s: float
    held_gpu_s: float
    """The GPU-seconds that it held, restarts included."""
    comm_gpu_s: float
    """GPU-seconds in exposed communication."""
    starts: int
    waited_s: float
    """The seconds without GPUs, before its first start and between starts."""
    ideal_s: float | None = None
    """How long it takes on the GPUs asked for, consolidated, if it never waits. None: it cannot be predicted."""
    comm_dimensions: dict[str, float] = field(default_factory=dict)
    """`comm_gpu_s` by the dimension of its layout; empty without one."""

    @property
    def completion_s(self) -> float:
        """The seconds from its submission to its end."""
        return self.end_s - self.job.submit_s


@dataclass(frozen=True)
class Simulated:
    """The outcome of a trace under a policy."""

    outcomes: list[JobOutcome]
    """The outcomes in the order of their ends."""
    usage: list[tuple[float, int, int]]
    """(seconds, GPUs in use, jobs that wait), one entry for each change."""


Forecaster = Callable[[Job], float | None]
"""Gives the samples that a job is expected to need in all, known from its submission on; None: it is not predictable.
"""


def exactly(job: Job) -> float | None:
    """The length of every job is known exactly."""
    return job.samples


def forecasts(predictable_share: float, error: float, seed: int) -> Forecaster:
    """Each job is predictable with this probability, and its forecast is the true number of samples times exp(x), where
    x is normal with mean 0 and standard deviation `error`.

    The forecast of a job depends on the seed only, not on the order of the calls. A job that is predictable with one
    share is so with every larger share, and has the same forecast, so that shares can be compared.
    """

    def expect(job: Job) -> float | None:
        drawn = random.Random(f"{seed}/{job.job_id}")  # seeded by a hash of the text, the same in every process
        is_predictable = drawn.random() < predictable_share
        return job.samples * math.exp(drawn.gauss(0.0, error)) if is_predictable else None

    return expect
