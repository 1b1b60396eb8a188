"""Whether the candidates for a job fit in memory, and what would make them fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from ddlprof.base.units import percent
from ddlprof.instance_catalog import Catalog, InstanceType
from ddlprof.recommender.compute.memory import JobMemory, largest_fitting
from ddlprof.recommender.compute.memory_fit import (
    FITS,
    PERHAPS,
    MemoryVerdict,
    NeededMemory,
    usable_gib_of,
    verdict_of,
)
from ddlprof.recommender.compute.step_parts import Changes
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.plans.candidates import TrainingSetup
from ddlprof.recommender.workload import Workload

MemoryModel = Callable[[Workload, int, str, str, int], "float | None"]
"""From workload, batch per GPU, precision, strategy and number of GPUs to GiB per GPU; None if unknown."""
Needed = Callable[[int, int, int], NeededMemory | None]
"""From batch, number of GPUs and accumulation to the need of one GPU; None if unknown."""
TOO_LARGE = "does not fit in memory"
"""The name of the reason why a candidate is rejected."""
_EIGHT_BITS = {"adam": "adam8bit", "adamw": "adamw8bit"}
"""Optimizers by the name of their form with states of 8 bits."""


class MemoryFit:
    """Tells whether a job fits into the memory of one GPU of each machine."""

    def __init__(
        self, workload: Workload, job: TrainingSetup, catalog: Catalog, memory: MemoryModel | None = None
    ) -> None:
        self._job = job
        self._catalog = catalog
        self.needed: Needed = cache(_needed(workload, job, memory))
        """(batch, number of GPUs, accumulation) -> the need of one GPU; None: not known."""
        self._changed = {} if memory else dict(_changed(workload, job))
        self._largest: dict[tuple[float, int, int], int] = {}
        self._cures: dict[tuple[float, int, int, int], tuple[str, ...]] = {}

    def usable_gib(self, instance: InstanceType) -> float | None:
        """What a process gets of a GPU of the machine; None: not known."""
        if instance.gpu_memory_gib is None:
            return None
        return usable_gib_of(self._catalog.gpu(instance.gpu_model), instance.gpu_memory_gib)

    def verdict(self, instance: InstanceType, needed: NeededMemory | None) -> MemoryVerdict | None:
        """Whether the need fits on a GPU of the machine; None: not known."""
        return verdict_of(needed, self.usable_gib(instance))

    def problem(self, instance: InstanceType, found: MemoryVerdict, batch: int, gpus: int, grad_accum: int) -> str:
        """The reason why it does not fit, with the largest batch that would, and with what else it would."""
        most = self.largest_batch(found.usable_gib, gpus, grad_accum)
        advice = f"the largest batch that fits is {most}" if most else "not even one sample does"
        others = [cure for cure in self.cures(found, batch, gpus, grad_accum) if not cure.startswith("--batch")]
        would = f", it would fit with {' or '.join(others)}" if others else ""
        needs = f"needs {found.needed.gib:.1f} GiB of {found.usable_gib:.1f} on {instance.gpu_model}"
        return f"{TOO_LARGE}: {needs}; {advice}{would}"

    def perhaps(self, found: MemoryVerdict, batch: int, gpus: int, grad_accum: int) -> str:
        """A sentence on a step that fits perhaps."""
        need, cures = found.needed, self.cures(found, batch, gpus, grad_accum)
        would = f"; it would fit with {' or '.join(cures)}" if cures else ""
        return (
            f"memory: {PERHAPS} ({percent(found.probability)}), needs {need.gib:.1f} GiB ({need.low_gib:.1f} to"
            f" {need.high_gib:.1f}) of {found.usable_gib:.1f}{would}"
        )

    def cures(self, found: MemoryVerdict, batch: int, gpus: int, grad_accum: int) -> tuple[str, ...]:
        """The options with each of which alone the step would fit: checkpointing, an optimizer with states of 8 bits,
        sharding, a smaller batch of one forward pass."""
        key = (found.usable_gib, batch, gpus, grad_accum)
        if key not in self._cures:
            cures = [
                option
                for option, needed in self._changed.items()
                if _fits(needed(batch, gpus, grad_accum), found.usable_gib) and (gpus > 1 or "strategy" not in option)
            ]
            most = largest_fitting(lambda less: _fits(self.needed(less, gpus, grad_accum), found.usable_gib))
            cures += [f"--batch {most} and --grad-accum"] if 0 < most < batch else []
            self._cures[key] = tuple(cures)
        return self._cures[key]

    def largest_batch(self, usable_gib: float, gpus: int, grad_accum: int) -> int:
        """The largest batch of one forward pass that is expected to fit into so much; 0: none."""
        key = (usable_gib, gpus, grad_accum)
        if key not in self._largest:

            def fits(batch: int) -> bool:
                needed = self.needed(batch, gpus, grad_accum)
                return needed is not None and needed.gib <= usable_gib

            self._largest[key] = largest_fitting(fits)
        return self._largest[key]

    def nowhere(self, tried: Sequence[tuple[InstanceType, int, int]]) -> PredictionError:
        """The error for a job that fits on none of the machines tried, each given with its number of GPUs and
        accumulation."""
        batches = ", ".join(str(batch) for batch in self._job.batches_per_gpu)
        most, instance = max(
            ((self.largest_batch(self.usable_gib(one) or 0.0, *sizes), one) for one, *sizes in tried),
            key=lambda option: (option[0], option[1].gpu_memory_gib or 0.0),
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


def _fits(needed: NeededMemory | None, usable_gib: float) -> bool:
    verdict = verdict_of(needed, usable_gib)
    return verdict is not None and verdict.word == FITS


def _needed(workload: Workload, job: TrainingSetup, memory: MemoryModel | None) -> Needed:
    if memory is None:
        changes = Changes.of(job.asked)
        return JobMemory(workload, precision=job.precision, strategy=job.strategy, changes=changes).needed

    def as_told(batch: int, gpus: int, _: int) -> NeededMemory | None:
        gib = memory(workload, batch, job.precision, job.strategy, gpus)
        return None if gib is None else NeededMemory(gib, gib, gib)

    return as_told


def _changed(workload: Workload, job: TrainingSetup) -> Iterator[tuple[str, Needed]]:
    """Options that take memory off a job, each with the need under it; none where its operators are not known."""
    step = workload.step
    if step is None or step.memory is None or not step.training:
        return
    asked, changes = job.asked, Changes.of(job.asked)
    optimizer = asked.optimizer or step.optimizer or ""
    options: list[tuple[str, Changes, str]] = []
    if not (asked.checkpointing if asked.checkpointing is not None else step.checkpointing):
        options.append(("--checkpointing", replace(changes, checkpointing=True), job.strategy))
    if lighter := _EIGHT_BITS.get(optimizer.partition("-")[0]):
        options.append((f"--optimizer {lighter}", replace(changes, optimizer=lighter), job.strategy))
    if job.strategy != "fsdp":
        options.append(("--strategy fsdp", changes, "fsdp"))
    for option, changed, strategy in options:
        try:
            found = JobMemory(workload, precision=job.precision, strategy=strategy, changes=changed)
        except PredictionError:
            continue
        yield option, cache(found.needed)
