"""A job of a trace, and where it stands while the cluster is simulated."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.cluster.machines import Allocation


@dataclass(frozen=True)
class Job:
    """A training job: how much work it is and what it asks for. Independent of any policy."""

    job_id: str
    submit_s: float
    gpus: int
    """GPUs asked for, all at once."""
    samples: float
    """The samples it trains with until it ends."""
    batch: int
    """The samples of one update over all GPUs."""
    step_s: float | None = None
    """The seconds of one update on the GPUs asked for, as close together as can be; None: a predictor knows."""
    model: str | None = None
    min_gpus: int = 1
    """The fewest it can do with where `max_gpus` lets a policy choose."""
    max_gpus: int | None = None
    """This and the three below: what an elastic policy may choose from. None: as asked for."""
    min_batch: int | None = None
    max_batch: int | None = None
    max_batch_per_gpu: int | None = None
    """What fits the memory of one GPU in one pass."""

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
    """Where a job stands, in seconds of the simulated clock. Policies read it; only the simulation changes it."""

    job: Job
    changed_s: float
    """When the figures below were right. Until they change, work goes on as `done_at` says."""
    done_samples: float = 0.0
    samples_per_s: float = 0.0
    """0 while it waits."""
    works_from_s: float = 0.0
    """When it began, or will begin, to make progress on its allocation: after its restart."""
    held_gpu_s: float = 0.0
    """GPU-seconds held, restarts included: the service it has attained."""
    comm_gpu_s: float = 0.0
    """GPU-seconds in exposed communication."""
    comm_share: float = 0.0
    """The share of its present step in exposed communication."""
    allocation: Allocation | None = None
    assigned_s: float = 0.0
    """When it was last given GPUs or its lease was renewed; before that, when it was submitted."""
    lease_end_s: float = 0.0
    waited_s: float = 0.0
    """Without GPUs so far, its present wait not counted."""
    starts: int = 0
    first_start_s: float | None = None
    expected_samples: float | None = None
    """How many samples it seems to need in all, for policies that use it; None: nobody can tell."""
    expected_from_samples: float = 0.0
    """Nobody can tell before so many are done."""

    def done_at(self, now_s: float) -> float:
        """The samples done."""
        # Asked more often than anything else, so without a call.
        since_s = self.works_from_s if self.works_from_s > self.changed_s else self.changed_s
        return self.done_samples + (now_s - since_s) * self.samples_per_s if now_s > since_s else self.done_samples

    def held_at(self, now_s: float) -> float:
        """The GPU-seconds held."""
        gpus = self.allocation.gpus if self.allocation is not None else 0
        return self.held_gpu_s + (now_s - self.changed_s) * gpus

    def comm_at(self, now_s: float) -> float:
        """The GPU-seconds in exposed communication."""
        gpus = self.allocation.gpus if self.allocation is not None else 0
        working_s = max(now_s - max(self.works_from_s, self.changed_s), 0.0)
        return self.comm_gpu_s + working_s * gpus * self.comm_share

    def remaining_at(self, now_s: float) -> float | None:
        """The samples it seems to need from now on, at least one update; None: nobody can tell."""
        done = self.done_at(now_s)
        if self.expected_samples is None or done < self.expected_from_samples:
            return None
        return max(self.expected_samples - done, float(self.job.batch))

    def may_move(self, now_s: float) -> bool:
        """Whether no lease protects what it holds."""
        return self.lease_end_s <= now_s


def model_key(name: str) -> str:
    """What names of one model have in common: ResNet-50 and resnet50 are one."""
    return "".join(filter(str.isalnum, name.lower()))
