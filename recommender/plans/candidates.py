"""What could be rented for a job: instance types and regions, how the job's batch is laid out on them, and what fits.

Knows nothing of time and cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from instance_catalog import Catalog, Gpu, InstanceType
from instance_catalog.catalog import ANY_REGION, REFERENCE_REGIONS
from recommender.compute.memory import USABLE_MEMORY_SHARE, JobMemory, largest_fitting
from recommender.errors import PredictionError
from recommender.settings import Settings, check_settings, lacking, measured_settings
from recommender.workload import Workload

_USUAL_CLOUD = "aws"
DOES_NOT_FIT = "does not fit in memory"
MemoryModel = Callable[[Workload, int, str, str, int], "float | None"]
"""A function from workload, batch per GPU, precision, strategy and GPUs in all to GiB per GPU, None if unknown."""


@dataclass(frozen=True)
class TrainingSetup:
    """How the job trains."""

    batches_per_gpu: tuple[int, ...]
    """The batches to try, in samples of one forward pass."""
    grad_accum: int
    global_batch: int | None
    """The samples for one update, as measured."""
    precision: str
    strategy: str
    keep_global_batch: bool
    asked: Settings
    """What is not as measured."""

    def lacks(self, gpu: Gpu) -> str | None:
        """What a GPU lacks to train the job; TF32 is missed only where it is asked for, and run as fp32 elsewhere."""
        return None if self.precision == "tf32" != self.asked.precision else lacking(gpu, self.precision)


@dataclass(frozen=True)
class Layout:
    """All GPUs of a number of equal machines, and the batch of each."""

    nodes: int
    gpus_per_node: int
    batch_per_gpu: int
    grad_accum: int

    @property
    def gpus(self) -> int:
        """The GPUs of all machines, which are the ranks of the job."""
        return self.nodes * self.gpus_per_node

    @property
    def placement(self) -> tuple[int, ...]:
        """The placement in the form of `Target.placement`."""
        return _even(self.gpus_per_node, self.nodes)

    @property
    def global_batch(self) -> int:
        """The samples for one update."""
        return self.gpus * self.batch_per_gpu * self.grad_accum


def global_batch_of(workload: Workload) -> int | None:
    """The samples for one update, by the run or its first measurement; None if not known."""
    if workload.global_batch is not None or not workload.measurements:
        return workload.global_batch
    measured = workload.measurements[0]
    return measured.batch_per_gpu * sum(measured.placement) * measured.grad_accum


def describe_job(
    workload: Workload, batches_per_gpu: Sequence[int], keep_global_batch: bool, asked: Settings | None = None
) -> TrainingSetup:
    """How the job trains by its first measurement, or as its operators were counted.

    `batches_per_gpu` replaces that batch, `asked` the rest.

    Raises PredictionError where batch or global batch are needed and not known, and for settings nobody knows.
    """
    asked, known = asked or Settings(), measured_settings(workload)
    check_settings(asked)
    measured = workload.measurements[0] if workload.measurements else None
    counted = workload.step.batch if workload.step else None
    batch = measured.batch_per_gpu if measured else counted
    batches = tuple(batches_per_gpu) or ((batch,) if batch else ())
    if not batches or min(batches) < 1:
        raise PredictionError("the batch per GPU is not known: give it (command line: --batch B)")
    global_batch = global_batch_of(workload)
    if global_batch is None and keep_global_batch:
        raise PredictionError("the global batch is not known, so it cannot be kept: give runs, or do without")
    return TrainingSetup(
        batches_per_gpu=batches,
        grad_accum=asked.grad_accum or known.grad_accum or 1,
        global_batch=global_batch,
        precision=asked.precision or known.precision or "fp32",
        strategy=asked.strategy or known.strategy or "ddp",
        keep_global_batch=keep_global_batch,
        asked=asked,
    )


def choose_instances(
    catalog: Catalog, names: Sequence[str] | None, region: str | None, cloud: str | None
) -> list[tuple[InstanceType, str]]:
    """The instance types to look at, each with its region: the one named, or the reference region of its cloud.

    With none named: all of the cloud; with no cloud named either: those with prices in the region, or else of AWS, or
    of all where the catalogue has nothing of AWS, and those that the user has a price of.
    Raises CatalogError for an unknown name and PredictionError if nothing has a price there.
    """
    catalog.select(cloud=cloud, region=region)  # names the closest where cloud or region are not known
    if names is not None:
        instances = [catalog.instance(name, cloud=cloud) for name in dict.fromkeys(names)]
    else:
        clouds = {cloud} if cloud else _clouds(catalog, region)
        own = set() if cloud else {(price.cloud, price.instance_type) for price in catalog.prices if price.own}
        instances = [i for i in catalog.instances if i.cloud in clouds or (i.cloud, i.instance_type) in own]
    located = [(i, region or REFERENCE_REGIONS.get(i.cloud, ANY_REGION)) for i in instances]
    if not any(price.region in (where, ANY_REGION) for i, where in located for price in catalog.prices_of(i)):
        what = ", ".join(names) if names else cloud or "any instance type"
        places = ", ".join(sorted({place for _, place in located}))
        known = sorted({price.region for i in instances for price in catalog.prices_of(i)})
        advice = f"there is one in {', '.join(known)}" if known else "choose another type, or refresh the catalogue"
        raise PredictionError(f"no price of {what} in {places}; {advice}")
    return located


def _clouds(catalog: Catalog, region: str | None) -> set[str]:
    if region:
        return {price.cloud for price in catalog.prices if price.region == region and not price.own}
    known = {instance.cloud for instance in catalog.instances}
    return known & {_USUAL_CLOUD} or known


def unusable(instance: InstanceType, gpu: Gpu, job: TrainingSetup, named: bool) -> str | None:
    """The reason why no number of these machines can run the job; None if they may."""
    if not instance.gpus:
        return f"fraction of a GPU: {instance.gpu_fraction:g} of one {instance.gpu_model}"
    if instance.offered is False and not named:
        return "retired: no longer offered to new customers; name it to have it ranked all the same"
    return job.lacks(gpu)


def lay_out(
    job: TrainingSetup, nodes: int, gpus_per_node: int, batch_per_gpu: int, fits: Callable[[int], bool]
) -> Layout | None:
    """The layout of the job on these GPUs; None if its global batch is to be kept and cannot be.

    By default batch and accumulation stay as they were measured. To keep the global batch, each GPU takes an equal
    share in as few passes as possible, none larger than `batch_per_gpu` and, if any is, than what fits in memory.
    """
    if not job.keep_global_batch or job.global_batch is None:
        return Layout(nodes, gpus_per_node, batch_per_gpu, job.grad_accum)
    share, rest = divmod(job.global_batch, nodes * gpus_per_node)
    if rest or not share:
        return None
    batches = [batch for batch in _divisors(share) if batch <= batch_per_gpu]
    batch = next((batch for batch in batches if fits(batch)), batches[0])
    return Layout(nodes, gpus_per_node, batch, share // batch)


@lru_cache(maxsize=4096)
def _even(gpus: int, nodes: int) -> tuple[int, ...]:
    """One object for all the plans that have it: with many machines they would fill the memory."""
    return (gpus,) * nodes


@lru_cache(maxsize=4096)
def _divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, from the largest to 1."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}, reverse=True))


class MemoryFit:
    """Whether one job fits into the memory of one GPU of each machine."""

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
