"""Whether a layout of the job fits into the memory of a GPU, and which batch would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from instance_catalog import InstanceType
from recommender.compute.memory import JobMemory, largest_fitting
from recommender.errors import PredictionError
from recommender.plans.candidates import TrainingSetup
from recommender.workload import Workload

USABLE_MEMORY_SHARE = 0.92
"""The share of a GPU's nominal memory that a process gets: an A10G shows 22.1 of 24 GiB."""
DOES_NOT_FIT = "does not fit in memory"

MemoryModel = Callable[[Workload, int, str, str, int], "float | None"]
"""A function from workload, batch per GPU, precision, strategy and GPUs in all to GiB per GPU, None if unknown."""


class Fitting:
    """The memory of one job on one GPU of each machine."""

    def __init__(self, workload: Workload, job: TrainingSetup, memory: MemoryModel | None = None) -> None:
        self._job = job
        self.needed_gib: Callable[[int, int, int], float | None] = cache(_needed_gib(workload, job, memory))
        """GiB by batch, GPUs in all and accumulation; None: not known."""
        self._largest: dict[tuple[float, int, int], int] = {}

    def fits(self, instance: InstanceType, needed_gib: float | None) -> bool | None:
        """Whether that much fits on a GPU of the machine; None: not known."""
        if needed_gib is None or instance.gpu_memory_gib is None:
            return None
        return needed_gib <= USABLE_MEMORY_SHARE * instance.gpu_memory_gib

    def problem(self, instance: InstanceType, needed_gib: float | None, gpus: int, grad_accum: int) -> str:
        """Why it does not fit, with the largest batch that would."""
        usable_gib = USABLE_MEMORY_SHARE * (instance.gpu_memory_gib or 0.0)
        most = self.largest_batch(instance, gpus, grad_accum)
        advice = f"the largest batch that fits is {most}" if most else "not even one sample does"
        return f"{DOES_NOT_FIT}: needs {needed_gib:.1f} GiB of {usable_gib:.1f} on {instance.gpu_model}; {advice}"

    def largest_batch(self, instance: InstanceType, gpus: int, grad_accum: int) -> int:
        """The largest batch of one forward pass that fits on a GPU of the machine; 0: none."""
        key = (USABLE_MEMORY_SHARE * (instance.gpu_memory_gib or 0.0), gpus, grad_accum)
        if key not in self._largest:
            self._largest[key] = largest_fitting(lambda batch: self._fits_into(key[0], batch, gpus, grad_accum))
        return self._largest[key]

    def _fits_into(self, usable_gib: float, batch: int, gpus: int, grad_accum: int) -> bool:
        needed_gib = self.needed_gib(batch, gpus, grad_accum)
        return needed_gib is not None and needed_gib <= usable_gib

    def nowhere(self, tried: Sequence[tuple[InstanceType, int, int]]) -> PredictionError:
        """The error where no machine of those tried, each with its GPUs in all and accumulation, has the memory."""
        batches = ", ".join(str(batch) for batch in self._job.batches_per_gpu)
        most, instance = max(
            ((self.largest_batch(*each), each[0]) for each in tried),
            key=lambda found: (found[0], found[1].gpu_memory_gib or 0.0),
        )
        where = f"{instance.gpu_model} ({instance.gpu_memory_gib:g} GiB)"
        if not most:
            return PredictionError(
                f"not even one sample fits into the memory of any GPU in question, the largest is {where}: ask for"
                " sharding (--strategy fsdp), --checkpointing or another precision"
            )
        return PredictionError(
            f"a batch of {batches} fits into the memory of no GPU in question; the largest that fits is {most}, on"
            f" {where}: take it (--batch {most}) and accumulate (--grad-accum), or ask for --checkpointing"
        )


def _needed_gib(
    workload: Workload, job: TrainingSetup, memory: MemoryModel | None
) -> Callable[[int, int, int], float | None]:
    if memory is not None:
        return lambda batch, gpus, _: memory(workload, batch, job.precision, job.strategy, gpus)
    asked = job.asked
    of_job = JobMemory(
        workload,
        precision=job.precision,
        strategy=job.strategy,
        optimizer=asked.optimizer,
        checkpointing=asked.checkpointing,
        compiled=asked.compiled,
    )
    return of_job.needed_gib
