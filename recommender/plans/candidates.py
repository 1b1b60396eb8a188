"""The candidates for a job: instance types and regions, and how its batch is sized on them.

Time and cost are not considered here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ddlprof.instance_catalog import Catalog, Gpu, InstanceType
from ddlprof.instance_catalog.catalog import ANY_CLOUD
from ddlprof.instance_catalog.clouds import ANY_REGION, cloud_named
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.settings import Settings, check_settings, lacking, measured_settings
from ddlprof.recommender.workload import Workload

_USUAL_CLOUD = "aws"


@dataclass(frozen=True)
class TrainingSetup:
    """The settings that the job trains with."""

    batches_per_gpu: tuple[int, ...]
    """The batches to try, in samples of one forward pass."""
    grad_accum: int
    global_batch: int | None
    """The samples for one update, as measured."""
    precision: str
    strategy: str
    keep_global_batch: bool
    asked: Settings
    """The settings that differ from the measured ones."""

    def lacks(self, gpu: Gpu) -> str | None:
        """Why a GPU cannot train the job; None if it can. A GPU without TF32 runs fp32 unless TF32 was asked for."""
        return None if self.precision == "tf32" != self.asked.precision else lacking(gpu, self.precision)


@dataclass(frozen=True)
class Sizing:
    """A number of equal machines, all of whose GPUs are used, and the batch of each GPU."""

    nodes: int
    gpus_per_node: int
    batch_per_gpu: int
    """The samples of a forward pass."""
    grad_accum: int
    copy_ranks: int = 1
    """The GPUs among which one copy of the model is divided: they share their samples."""

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
        return self.gpus // self.copy_ranks * self.batch_per_gpu * self.grad_accum


def global_batch_of(workload: Workload) -> int | None:
    """The samples for one update, by the workload or its first measurement; None if not known."""
    if workload.global_batch is not None or not workload.measurements:
        return workload.global_batch
    measured = workload.measurements[0]
    return measured.batch_per_gpu * sum(measured.placement) * measured.grad_accum


def describe_job(
    workload: Workload, batches_per_gpu: Sequence[int], keep_global_batch: bool, asked: Settings | None = None
) -> TrainingSetup:
    """The settings of the job: those of its first measurement or, without one, of its counted operators.

    `batches_per_gpu` replaces the batch, `asked` the other settings. Raises PredictionError where the batch, or the
    global batch that is to be kept, is not known, and for unknown settings.
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
    """The instance types to consider, each with its region: the given one, or the reference region of its cloud.

    Without names: all types of the cloud, or of all clouds for `any`; without a cloud, those with prices in the region;
    without a region, those of AWS (or all, if the catalogue has none of AWS) and those with a price of the user's own.
    Raises CatalogError for an unknown name and PredictionError if none has a price there.
    """
    catalog.select(cloud=cloud, region=region)  # raises for an unknown cloud or region
    if names is not None:
        one = None if cloud == ANY_CLOUD else cloud
        instances = [catalog.instance(name, cloud=one) for name in dict.fromkeys(names)]
    elif cloud == ANY_CLOUD:
        instances = list(catalog.instances)
    else:
        clouds = {cloud} if cloud else _clouds(catalog, region)
        own = set() if cloud else {(price.cloud, price.instance_type) for price in catalog.prices if price.own}
        instances = [i for i in catalog.instances if i.cloud in clouds or (i.cloud, i.instance_type) in own]
    located = [(i, region or cloud_named(i.cloud).reference_region) for i in instances]
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


def size_up(
    job: TrainingSetup, nodes: int, gpus_per_node: int, batch_per_gpu: int, fits: Callable[[int], bool]
) -> Sizing | None:
    """The sizes of the job on these GPUs; None if its global batch is to be kept and cannot be divided equally.

    By default batch and accumulation stay as measured. To keep the global batch, each GPU takes an equal share in as
    few forward passes as possible. A pass has at most `batch_per_gpu` samples and fits in memory, if any does.
    """
    if not job.keep_global_batch or job.global_batch is None:
        return Sizing(nodes, gpus_per_node, batch_per_gpu, job.grad_accum)
    share, rest = divmod(job.global_batch, nodes * gpus_per_node)
    if rest or not share:
        return None
    batches = [batch for batch in _divisors(share) if batch <= batch_per_gpu]
    batch = next((batch for batch in batches if fits(batch)), batches[0])
    return Sizing(nodes, gpus_per_node, batch, share // batch)


@lru_cache(maxsize=4096)
def _even(gpus: int, nodes: int) -> tuple[int, ...]:
    """The placement (gpus, gpus, ...). Cached, so that all plans share one tuple: with 1000 nodes, copies fill the
    memory."""
    return (gpus,) * nodes


@lru_cache(maxsize=4096)
def _divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, from the largest to 1."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}, reverse=True))
