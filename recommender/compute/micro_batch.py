"""The seconds of computation of one micro-batch on one GPU: on any GPU, at any batch and precision.

They come from the operators of the step or its FLOPs (`step_parts`), corrected by steps measured on this GPU and on
others (`combine`). Communication, loaders and accumulation are not considered. `scripts/fit/compute.py` writes the
coefficients in `coefficients.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

from ddlprof.instance_catalog import Catalog, Gpu
from ddlprof.recommender.compute.combine import LearnedPart, Point, Posterior, Predicted
from ddlprof.recommender.compute.correction import ComputeCorrection, CorrectedParts
from ddlprof.recommender.compute.gpu_peaks import precision_class
from ddlprof.recommender.compute.gpu_ratios import GpuPairs, Series, merged
from ddlprof.recommender.compute.host import TYPICAL, Host
from ddlprof.recommender.compute.least_time import NO_TIME, LeastTime
from ddlprof.recommender.compute.step_parts import (
    AS_COUNTED,
    PARTS,
    Changes,
    FlopParts,
    OperatorParts,
    PartsSource,
    StepParts,
)
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.estimate import Z80, ComputePhases, Range
from ddlprof.recommender.target import default_catalog, machine_of
from ddlprof.recommender.workload import Measurement, Workload

_MEASURED_SD = 0.03
"""The assumed spread between two runs of the same job on the same GPU."""
_UPPER_BOUND_SD = 0.35
"""The assumed standard deviation, as a share, where the step may contain communication and waiting."""
_UNFITTED_SD = 0.7
"""The standard deviation of the logarithm of the time of operators of kinds that were not fitted."""
_FP8_SD = 0.2
"""The standard deviation added for fp8, as no published step in fp8 was used."""
_OPERATORS_WEIGHT = {"nothing": 1.0, "elsewhere": 0.3}
"""The weight of the uncorrected operators in the mean, by where the job was measured. Published steps, half of them not
of PyTorch, make predictions of whole models in plain PyTorch worse (`docs/accuracy.md`)."""
_LARGE_SD, _LARGE_S, _LARGE_HOST_SHARE = 0.18, 0.05, 0.12
"""The standard deviation of the logarithm of a transformer's step in 16 bit that keeps the GPU busy for so long (s),
with at most such a share of launches and overhead: the root mean square of the errors on publications of such steps on
up to 32 GPUs, none of them in the fit (`scripts/fit/large_models.py` of commit 3b47765e). Most published steps are
small ones of older software."""
_SAME_CHIP = {"V100-SXM2-32GB": "V100-SXM2-16GB", "T4G": "T4"}
"""GPUs that differ only in memory or host."""


@dataclass(frozen=True)
class ComputeEstimate:
    """The computation of one micro-batch on one GPU: forward, backward and update."""

    seconds: Range
    basis: tuple[str, ...]
    extrapolated: bool
    phases: ComputePhases | None = None
    """The mean by phase; None if the operators of the step are not known."""
    least: LeastTime = NO_TIME
    """What no software can be faster than."""
    slower: float = 1.0
    """How many times as long it takes on the slowest host that is allowed for, where nothing tells how fast it is."""

    def step_s(self, passes: Any, measured_passes: int = 1, update_share: Any = 1.0) -> Any:
        """The seconds of a step of `passes` micro-batches and one update, of which the rank does `update_share`; arrays
        of both make an array.

        `measured_passes`: the micro-batches of the measured steps, which already share an update.
        """
        if self.phases is None:
            return self.seconds.mean_s * passes
        again_s, once_s = self.phases.forward_s + self.phases.backward_s, self.phases.optimizer_s
        counted_s = again_s + once_s / measured_passes
        return self.seconds.mean_s * (passes * again_s + update_share * once_s) / counted_s if counted_s else 0.0

    def phases_of(self, compute_s: float, passes: int, update_share: float = 1.0) -> ComputePhases | None:
        """The computation of such a step by phase; together they are `compute_s`."""
        if self.phases is None:
            return None
        once_s = update_share * self.phases.optimizer_s
        parts = (passes * self.phases.forward_s, passes * self.phases.backward_s, once_s)
        return ComputePhases(*(part * compute_s / sum(parts) for part in parts))


@dataclass(frozen=True)
class ComputeCoefficients:
    """The content of `coefficients.json`."""

    learned: Mapping[str, LearnedPart]
    """For parts made of `operators`, and for those made of `flops` or of nothing but `steps`."""
    widths: Mapping[str, float]
    """The factor on intervals by what is known, from errors on groups left out of the fit."""
    pairs: GpuPairs
    corrections: tuple[ComputeCorrection, ...] = ()
    """What the user's own runs say of their GPUs; no part of the file."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ComputeCoefficients:
        operators, flops = (LearnedPart.from_json(data[name]) for name in ("operators", "flops"))
        widths = {name: float(value) for name, value in data["widths"].items()}
        return cls({"operators": operators, "flops": flops, "steps": flops}, widths, GpuPairs.from_json(data["pairs"]))


@lru_cache(maxsize=1)
def shipped() -> ComputeCoefficients:
    """The coefficients of the package, read once."""
    text = files("ddlprof.recommender").joinpath("compute/coefficients.json").read_text(encoding="utf-8")
    return ComputeCoefficients.from_json(json.loads(text))


@dataclass(frozen=True)
class MeasuredStep:
    """The measured computation of one micro-batch."""

    gpu: Gpu
    kind: str
    """The class of precision."""
    precision: str
    batch: int
    seconds: float
    sd: float
    is_bound: bool
    """Whether it is only an upper bound, as other waits may be included."""


class ComputeModel:
    """Prepares the measurements of a workload once. Raises `CatalogError` for an unknown machine."""

    def __init__(
        self,
        workload: Workload,
        coefficients: ComputeCoefficients | None = None,
        catalog: Catalog | None = None,
        others: Sequence[Workload] = (),
    ) -> None:
        """`others`: jobs of the same software, whose measured steps tell of the GPUs that they ran on."""
        self._workload, self._fitted = workload, coefficients or shipped()
        self._catalog = catalog or default_catalog()
        self._steps = list(measured_steps(workload, self._catalog))
        self._parts = self._corrected(parts_of(workload, self._steps, self._catalog), workload)
        knowledge = self._parts.knowledge if self._parts else "flops"
        self._learned = self._fitted.learned[knowledge]
        self._others = [list(measured_steps(other, self._catalog)) for other in others]
        points = [self._point_of(step, self._parts, "0") for step in self._steps if self._parts]
        for number, (other, steps) in enumerate(zip(others, self._others, strict=True), 1):
            parts = parts_of(other, steps, self._catalog, with_operators=knowledge == "operators")
            parts = self._corrected(parts, other)
            if parts and (parts.knowledge == "operators") == (knowledge == "operators"):
                points += [self._point_of(step, parts, str(number)) for step in steps]
        self._posterior = Posterior(self._learned, points)

    def require_something(self) -> None:
        """Raises `PredictionError` without operators, a step measured on a GPU, or FLOPs."""
        if self._parts is None:
            raise PredictionError(
                f"{self._workload.name}: no step measured on a GPU and no FLOPs or operators, so its computing"
                " cannot be predicted: profile it once (a measurement on a GPU names it by instance_type or gpu_model),"
                " or count them with `ddlprof features MODULE:FACTORY --input SHAPE -o FILE`"
                " and give FILE beside RUN"
            )

    def estimate(
        self,
        gpu: Gpu,
        batch_per_gpu: int,
        precision: str,
        changes: Changes = AS_COUNTED,
        host: Host = TYPICAL,
    ) -> ComputeEstimate:
        """The mean and its 80 % interval. Raises `PredictionError` if nothing is known of the job's computation, the
        GPU lacks the precision, or the catalogue knows too little of the GPU."""
        self.require_something()
        assert self._parts is not None
        kind = precision_class(precision, gpu)
        parts = self._parts.at(gpu, batch_per_gpu, precision, changes, host)
        found = self._posterior.at(self._point(parts, self._parts.knowledge, gpu, kind, batch_per_gpu, "0"))
        here = [step for step in self._steps if (_chip(step.gpu), step.kind) == (_chip(gpu), kind)]
        known = "here" if here else "elsewhere" if self._steps else "nothing"
        sd = found.sd * self._fitted.widths.get(f"{self._parts.knowledge}, {known}", 1.0)
        if known == "nothing" and kind == "half" and self._fills_gpu(parts):
            sd = min(sd, _LARGE_SD)
        if parts.learned_sd is not None and not self._steps:
            sd = parts.learned_sd
        basis = [*self._basis(parts, found, gpu, precision, here, batch_per_gpu)]
        log_s, sd = _with_operators(parts, found.log_s, sd, 0.0 if self._others else _OPERATORS_WEIGHT.get(known, 0.0))
        if known == "elsewhere" and kind == "fp32" and changes == Changes():
            for ratio in self._ratios(gpu, batch_per_gpu):
                log_s, sd = merged((log_s, sd), ratio)
                basis.append(f"and by ratios of step times fitted between these GPUs and {gpu.gpu_model}")
        mean_s, spread, least_s = math.exp(log_s), Z80 * sd, parts.least.step_s()
        if not here:
            mean_s = max(mean_s, least_s)
        if self._parts.knowledge != "operators":
            basis += _ignored(changes)
        return ComputeEstimate(
            # A step measured here is believed, even where its counts say that it cannot be.
            Range(mean_s, max(mean_s * math.exp(-spread), min(least_s, mean_s)), mean_s * math.exp(spread)),
            tuple(basis),
            self._extrapolated(parts, gpu, kind, here, batch_per_gpu),
            _phases(parts, mean_s),
            parts.least,
            parts.slower if known == "nothing" and parts.learned_sd is None else 1.0,
        )

    def _fills_gpu(self, parts: StepParts) -> bool:
        """Whether the step is a transformer's that keeps its GPU busy."""
        total_s = sum(parts.seconds)
        if parts.phases is None or total_s < _LARGE_S or not self._is_transformer:
            return False
        host_s = sum(s for name, s in zip(PARTS, parts.seconds, strict=True) if name in ("launch", "overhead"))
        return bool(host_s <= _LARGE_HOST_SHARE * total_s)

    @cached_property
    def _is_transformer(self) -> bool:
        step = self._workload.step
        return step is not None and {o.kind for o in step.operators}.isdisjoint({"convolution", "recurrent"})

    def _corrected(self, parts: PartsSource | None, workload: Workload) -> PartsSource | None:
        if parts is None or not self._fitted.corrections:
            return parts
        return CorrectedParts(parts, self._fitted.corrections, workload.parameter_tensors)

    def _ratios(self, gpu: Gpu, batch: int) -> Iterator[tuple[float, float]]:
        """The most certain estimate by ratios to measured GPUs. Only one is used, as their errors are correlated."""
        found = []
        for chip in sorted({_chip(step.gpu) for step in self._steps if step.kind == "fp32" and not step.is_bound}):
            times = {
                step.batch: step.seconds for step in self._steps if _chip(step.gpu) == chip and step.kind == "fp32"
            }
            series = Series(tuple(sorted(times)), tuple(times[batch] for batch in sorted(times)))
            ratio = self._fitted.pairs.log_s(chip, _chip(gpu), series, batch, self._workload.parameter_tensors)
            found += [ratio] if ratio else []
        yield from sorted(found, key=lambda ratio: ratio[1])[:1]

    def _extrapolated(self, parts: StepParts, gpu: Gpu, kind: str, here: list[MeasuredStep], batch: int) -> bool:
        batches = [step.batch for step in here or self._steps]
        far = bool(batches) and not min(batches) / 2 <= batch <= 2 * max(batches)
        if here:
            return far
        published = (_chip(gpu), kind) in self._learned.gpus
        seen = published or parts.learned_sd is not None or self._catalog.reached_by(gpu.gpu_model) is not None
        return not seen or (far and self._parts is not None and self._parts.knowledge != "operators")

    def _point_of(self, step: MeasuredStep, source: PartsSource, job: str) -> Point:
        parts = source.at(step.gpu, step.batch, step.precision, Changes())
        point = self._point(parts, source.knowledge, step.gpu, step.kind, step.batch, job)
        return replace(point, log_s=math.log(step.seconds), noise=step.sd)

    def _point(self, parts: StepParts, knowledge: str, gpu: Gpu, kind: str, batch: int, job: str) -> Point:
        probed = self._catalog.reached_by(gpu.gpu_model) is not None
        effect = self._learned.of(_chip(gpu), gpu.compute_capability or "", kind, probed)
        labels = {"software": "", "job": job, "gpu": _chip(gpu), "precision": kind, "batch": str(batch)}
        extra = math.hypot(_UNFITTED_SD * parts.sd, _FP8_SD if kind == "fp8" else 0.0)
        return Point(parts.seconds, effect, labels, batch, knowledge, extra_sd=extra)

    def _basis(
        self, parts: StepParts, found: Predicted, gpu: Gpu, precision: str, here: list[MeasuredStep], batch: int
    ) -> Iterator[str]:
        """What the estimate is based on, one sentence each."""
        if here:
            if here[0].is_bound:
                yield f"step measured on several {gpu.gpu_model} taken for computation alone"
            else:
                yield f"computation measured on {gpu.gpu_model}"
            batches = sorted({step.batch for step in here})
            if batch not in batches:
                yield f"batch {batch} from the measured {', '.join(map(str, batches))}"
            return
        yield from parts.basis
        name, kind = _chip(gpu), precision_class(precision, gpu)
        if self._catalog.reached_by(gpu.gpu_model) is not None:
            yield f"{gpu.gpu_model}: what operators reached there was measured"
        elif (name, kind) in self._learned.gpus:
            if parts.phases is None or self._steps or self._others:  # otherwise the mean is that of the operators alone
                yield f"with what {gpu.gpu_model} reaches at {kind} on published models"
        else:
            yield f"no published step was measured on {gpu.gpu_model} at {kind}: like GPUs of its generation"
        if self._steps:
            measured = sorted({f"{step.gpu.gpu_model} {step.precision}" for step in self._steps})
            narrower = f"from ±{math.expm1(Z80 * found.prior_sd):.0%} to ±{math.expm1(Z80 * found.sd):.0%}"
            yield f"corrected by steps measured on {', '.join(measured)}, which narrows the interval {narrower}"
        there = sum(any(_chip(step.gpu) == name for step in steps) for steps in self._others)
        if there:
            yield f"and by {there} other jobs measured on {gpu.gpu_model}"


def _with_operators(parts: StepParts, log_s: float, sd: float, share: float) -> tuple[float, float]:
    """The logarithm of seconds moved by `share` towards that of the operators, and its standard deviation, which is
    wider where the two disagree. Without operators nothing changes."""
    if parts.phases is None:
        return log_s, sd
    away = math.log(max(sum(parts.phases), 1e-9)) - log_s
    return log_s + share * away, math.hypot(sd, min(share, 1 - share) * away)


def _phases(parts: StepParts, mean_s: float) -> ComputePhases | None:
    """The mean divided into phases in the proportions of the operators."""
    if parts.phases is None:
        return None
    total = sum(parts.phases)
    return ComputePhases(*(part * mean_s / total for part in parts.phases)) if total > 0 else None


def _ignored(changes: Changes) -> tuple[str, ...]:
    """Sentences on the changes asked for that are ignored, as the operators of the step are not known."""
    asked = {
        f"the optimizer {changes.optimizer}": changes.optimizer is not None,
        f"{'' if changes.checkpointing else 'no '}activation checkpointing": changes.checkpointing is not None,
        f"LoRA of rank {changes.lora}": changes.lora is not None,
        f"QLoRA of rank {changes.qlora}": changes.qlora is not None,
        f"{'' if changes.compiled else 'no '}torch.compile": changes.compiled is not None,
        f"channels {'last' if changes.channels_last else 'first'}": changes.channels_last is not None,
    }
    names = [name for name, is_asked in asked.items() if is_asked]
    if not names:
        return ()
    return (f"{', '.join(names)}: not taken into account, the operators of the step are not known",)


def _chip(gpu: Gpu) -> str:
    return _SAME_CHIP.get(gpu.gpu_model, gpu.gpu_model)


def parts_of(
    workload: Workload, steps: Sequence[MeasuredStep], catalog: Catalog, with_operators: bool = True
) -> PartsSource | None:
    """Parts from the operators, or else from FLOPs, or else from FLOPs that reproduce the largest measured step; None
    without any."""
    if workload.step is not None and workload.step.has_forward and with_operators:
        return OperatorParts(workload.step, catalog)
    if workload.flops_per_sample:
        return FlopParts(workload.flops_per_sample, workload.parameter_tensors)
    if not steps:
        return None
    last = max(steps, key=lambda step: (not step.is_bound, step.batch, step.gpu.gpu_model, step.seconds))
    guess = FlopParts(1e9, workload.parameter_tensors, "steps")
    return guess.scaled_to(last.seconds, last.gpu, last.batch, last.precision)


def measured_steps(workload: Workload, catalog: Catalog) -> Iterator[MeasuredStep]:
    """The measurements by GPU, precision and batch: those on one GPU, or else those on several."""
    found: dict[tuple[str, str, bool], list[Measurement]] = {}
    gpus: dict[str, Gpu] = {}
    for measurement in workload.measurements:
        gpu = machine_of(measurement, catalog).gpu
        if gpu is None:
            continue
        gpus[gpu.gpu_model] = gpu
        key = (gpu.gpu_model, precision_class(measurement.precision, gpu), sum(measurement.placement) == 1)
        found.setdefault(key, []).append(measurement)
    for (model, kind, alone), measurements in found.items():
        if alone or (model, kind, True) not in found:
            yield from _by_batch(gpus[model], kind, alone, measurements)


def _by_batch(gpu: Gpu, kind: str, alone: bool, measurements: list[Measurement]) -> Iterator[MeasuredStep]:
    by_batch: dict[int, list[float]] = {}
    is_bound = False
    for measurement in measurements:
        seconds, bound = _compute_s(measurement, alone)
        by_batch.setdefault(measurement.batch_per_gpu, []).append(seconds / measurement.grad_accum)
        is_bound = is_bound or bound
    sd = _UPPER_BOUND_SD if is_bound else _MEASURED_SD
    for batch, times in sorted(by_batch.items()):
        # The shortest for each batch: on several GPUs the others contain more time that is not computing.
        seconds = sum(times) / len(times) if alone else min(times)
        yield MeasuredStep(gpu, kind, measurements[0].precision, batch, seconds, sd, is_bound)


def _compute_s(measurement: Measurement, alone: bool) -> tuple[float, bool]:
    """Seconds of computation in a step, and whether that is only an upper bound."""
    if measurement.compute_s is not None:
        return measurement.compute_s, False
    rest_s = measurement.step_s - sum((measurement.exposed_comm_s or 0.0, *measurement.elsewhere_s))
    if rest_s <= 0:
        raise PredictionError(f"measured step of {measurement.step_s} s: its parts add up to more than the step")
    return rest_s, not alone and measurement.exposed_comm_s is None
