"""Seconds that one GPU, alone, computes for one micro-batch: on any GPU, at any batch and precision.

From step times measured on this GPU, else on another one, else from FLOPs. Nothing here knows of communication,
loaders or accumulation. The coefficients are data: `coefficients.json`, written by `scripts/fit/compute.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from instance_catalog import Catalog, Gpu
from recommender.compute.gpu_speed import Offset, Speeds, precision_class
from recommender.compute.launch_ratio import LaunchRatio
from recommender.compute.time_ratio import FixedShare, Ratio, Ratios, Series, distance, features, interpolate
from recommender.errors import PredictionError
from recommender.estimate import Z80, ComputePhases, Range
from recommender.target import default_catalog, machine_of
from recommender.workload import Measurement, Workload

_MEASURED_SD = 0.03
"""The assumed spread between two runs of the same job on the same GPU."""
_UPPER_BOUND_SD = 0.35
"""The assumed share of a step's computation that may hide communication and waiting."""
_SAME_CHIP = {"V100-SXM2-32GB": "V100-SXM2-16GB", "T4G": "T4"}
"""GPUs that differ only in memory or host."""


@dataclass(frozen=True)
class ComputeEstimate:
    """The computation of one micro-batch on one GPU: forward, backward and update."""

    seconds: Range
    basis: tuple[str, ...]
    extrapolated: bool
    phases: ComputePhases | None = None
    """The mean by phase, where the operators of the step are known."""


@dataclass(frozen=True)
class Coefficients:
    """The content of `coefficients.json`."""

    speeds: Speeds
    ratios: Ratios
    launch_ratios: Mapping[tuple[str, str], tuple[LaunchRatio, LaunchRatio]]
    """Pairs like `ratios.pairs`, for models whose parameter tensors are counted."""
    fixed_share: FixedShare
    """The fixed share where one batch was measured."""
    batch_sd: float
    """Standard deviation of the logarithm of seconds, for each factor e between a batch and the nearest measured."""
    between_batches_sd: float
    """The same for a batch between two measured ones."""
    flops_intercept: float
    flops_power: float
    """log(seconds) = intercept + power * log(FLOPs of the micro-batch) - log(speed)."""
    flops_sd: float
    flops_range: tuple[float, float]
    launch_s_per_tensor: float
    """The shortest step for each parameter tensor, whatever the GPU."""
    workload_sd: float
    """How much models differ in how a speed shows, where no pair of GPUs was fitted."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Coefficients:
        speeds, flops, batches = data["speeds"], data["flops"], data["batches"]
        gpus = {
            gpu: {precision: Offset(**offset) for precision, offset in by_precision.items()}
            for gpu, by_precision in speeds["gpus"].items()
        }
        pairs = {(p["source"], p["target"]): _both(p, squares=True) for p in data["pairs"]}
        return cls(
            speeds=Speeds(**{**speeds, "gpus": gpus}),
            ratios=Ratios(pairs, _both(data["share"], squares=False)),
            launch_ratios={
                (p["source"], p["target"]): (
                    LaunchRatio.from_json(p["one_batch_and_tensors"]),
                    LaunchRatio.from_json(p["several_batches_and_tensors"]),
                )
                for p in data["pairs"]
            },
            fixed_share=FixedShare(tuple(batches["milliseconds"]), tuple(batches["fixed_share"])),
            batch_sd=batches["sd"],
            between_batches_sd=batches["between_sd"],
            flops_intercept=flops["intercept"],
            flops_power=flops["power"],
            flops_sd=flops["sd"],
            flops_range=(flops["low"], flops["high"]),
            launch_s_per_tensor=flops["launch_s_per_tensor"],
            workload_sd=data["workload_sd"],
        )


@lru_cache(maxsize=1)
def shipped() -> Coefficients:
    """The coefficients of the package, read once."""
    text = files("recommender").joinpath("compute/coefficients.json").read_text(encoding="utf-8")
    return Coefficients.from_json(json.loads(text))


def compute(workload: Workload, gpu: Gpu, batch_per_gpu: int, precision: str) -> ComputeEstimate:
    """Estimates one micro-batch on one GPU; `ComputeModel` is faster for many targets of one workload."""
    return ComputeModel(workload).estimate(gpu, batch_per_gpu, precision)


@dataclass(frozen=True)
class _Source:
    """The step times of one GPU at one precision."""

    gpu: Gpu
    precision: str
    series: Series
    sd: float
    basis: str


@dataclass(frozen=True)
class _Guess:
    log_s: float
    sd: float
    basis: tuple[str, ...]
    extrapolated: bool


class ComputeModel:
    """Prepares the measurements of a workload once. Raises `CatalogError` for a machine that nobody knows."""

    def __init__(
        self, workload: Workload, coefficients: Coefficients | None = None, catalog: Catalog | None = None
    ) -> None:
        self._workload = workload
        self._fitted = coefficients or shipped()
        self._sources = _sources(workload, catalog or default_catalog())

    def require_something(self) -> None:
        """Raises `PredictionError` if there is neither a measured step nor FLOPs: then no GPU can be predicted."""
        if not self._sources and not self._workload.flops_per_sample:
            raise PredictionError(
                f"{self._workload.name}: no step measured on a GPU and no FLOPs, so its computing cannot be"
                " predicted: profile it once on a GPU (a measurement names it by instance_type or gpu_model), or count"
                " them with `ddlprof features MODULE:FACTORY --input SHAPE -o FILE`"
                " and give FILE beside RUN"
            )

    def estimate(
        self,
        gpu: Gpu,
        batch_per_gpu: int,
        precision: str,
        *,
        optimizer: str | None = None,
        checkpointing: bool | None = None,
        compiled: bool | None = None,
    ) -> ComputeEstimate:
        """The mean and its 80 % interval; None of the last three is as measured. Raises `PredictionError` if there is
        neither a measured step nor FLOPs, or the catalogue knows too little of the GPU."""
        self.require_something()
        wanted = precision_class(precision, gpu)
        guesses = [self._from_source(source, gpu, batch_per_gpu, wanted) for source in self._sources]
        if self._workload.flops_per_sample:
            guesses.append(self._from_flops(gpu, batch_per_gpu, wanted))
        best = min(guesses, key=lambda guess: guess.sd)
        mean_s, spread = math.exp(best.log_s), Z80 * best.sd
        seconds = Range(mean_s, mean_s * math.exp(-spread), mean_s * math.exp(spread))
        ignored = _ignored(optimizer, checkpointing, compiled)
        return ComputeEstimate(seconds, (*best.basis, *ignored), best.extrapolated)

    def _from_source(self, source: _Source, gpu: Gpu, batch: int, precision: str) -> _Guess:
        seconds = interpolate(source.series, batch, self._fitted.fixed_share)
        away = distance(source.series.batches, batch)
        measured, basis = source.series.batches, [source.basis]
        between = measured[0] < batch < measured[-1]
        sd = math.hypot(source.sd, away * (self._fitted.between_batches_sd if between else self._fitted.batch_sd))
        far = not measured[0] / 2 <= batch <= 2 * measured[-1]
        if away:
            basis.append(f"batch {batch} from the measured {', '.join(map(str, measured))}")
        if (_chip(gpu), precision) == (_chip(source.gpu), source.precision):
            return _Guess(math.log(seconds), sd, tuple(basis), far)
        ratio, ratio_sd, how, known = self._ratio(source, gpu, batch, precision, seconds)
        return _Guess(math.log(seconds) + ratio, math.hypot(sd, ratio_sd), (*basis, how), far or not known)

    def _ratio(
        self, source: _Source, gpu: Gpu, batch: int, precision: str, seconds: float
    ) -> tuple[float, float, str, bool]:
        """Logarithm of the ratio of step times, its standard deviation, where it is from, whether it was fitted."""
        several = source.series.several
        values = features(source.series, batch, seconds)
        pair = (_chip(source.gpu), _chip(gpu))
        if pair in self._fitted.ratios.pairs and precision == source.precision == "fp32":
            how = f"{gpu.gpu_model} from {source.gpu.gpu_model}: fitted on this pair of GPUs"
            fitted: Ratio | LaunchRatio = self._fitted.ratios.pairs[pair][several]
            tensors = self._workload.parameter_tensors
            if tensors:
                fitted, values = self._fitted.launch_ratios[pair][several], np.append(values, math.log(tensors))
                how += f", with launches for {tensors} parameter tensors"
            return fitted.log(values), fitted.sd_at(seconds), how, fitted.covers(values)
        before, after = self._fitted.speeds.of(source.gpu, source.precision), self._fitted.speeds.of(gpu, precision)
        share = self._fitted.ratios.share[several]
        shown = min(max(share.log(values), 0.0), 1.2)
        sd = math.hypot(before.sd, after.sd, self._fitted.workload_sd, share.sd_at(seconds) * (after.log - before.log))
        how = (
            f"{gpu.gpu_model} {precision} from {source.gpu.gpu_model} {source.precision}: "
            f"learned speeds, {shown:.0%} of the difference"
        )
        return (before.log - after.log) * shown, sd, how, before.seen and after.seen

    def _from_flops(self, gpu: Gpu, batch: int, precision: str) -> _Guess:
        fitted, flops = self._fitted, (self._workload.flops_per_sample or 0.0) * batch
        speed = fitted.speeds.of(gpu, precision)
        log_s = fitted.flops_intercept + fitted.flops_power * math.log(flops) - speed.log
        basis = f"computation from FLOPs alone, with what {gpu.gpu_model} reaches at {precision} on published models"
        tensors = self._workload.parameter_tensors
        if tensors:
            log_s = max(log_s, math.log(fitted.launch_s_per_tensor * tensors))
        outside = not fitted.flops_range[0] <= flops <= fitted.flops_range[1]
        return _Guess(log_s, math.hypot(fitted.flops_sd, speed.sd), (basis,), outside or not speed.seen)


def _ignored(optimizer: str | None, checkpointing: bool | None, compiled: bool | None) -> tuple[str, ...]:
    """Says which questions need the operators of the step to be answered; empty where none was asked."""
    asked = {
        f"the optimizer {optimizer}": optimizer is not None,
        f"{'' if checkpointing else 'no '}activation checkpointing": checkpointing is not None,
        f"{'' if compiled else 'no '}torch.compile": compiled is not None,
    }
    names = [name for name, is_asked in asked.items() if is_asked]
    if not names:
        return ()
    return (f"{', '.join(names)}: not taken into account, the operators of the step are not known",)


def _both(data: Mapping[str, Any], squares: bool) -> tuple[Ratio, Ratio]:
    return Ratio.from_json(data["one_batch"], squares), Ratio.from_json(data["several_batches"], squares)


def _chip(gpu: Gpu) -> str:
    return _SAME_CHIP.get(gpu.gpu_model, gpu.gpu_model)


def _sources(workload: Workload, catalog: Catalog) -> list[_Source]:
    """The measurements by GPU and precision: those on one GPU, or else those on several."""
    found: dict[tuple[str, str, bool], list[Measurement]] = {}
    gpus: dict[str, Gpu] = {}
    for measurement in workload.measurements:
        gpu = machine_of(measurement, catalog).gpu
        if gpu is None:
            continue
        gpus[gpu.gpu_model] = gpu
        key = (gpu.gpu_model, precision_class(measurement.precision, gpu), sum(measurement.placement) == 1)
        found.setdefault(key, []).append(measurement)
    return [
        _source(gpus[model], precision, alone, measurements)
        for (model, precision, alone), measurements in found.items()
        if alone or (model, precision, True) not in found
    ]


def _source(gpu: Gpu, precision: str, alone: bool, measurements: list[Measurement]) -> _Source:
    by_batch: dict[int, list[float]] = {}
    sd, basis = _MEASURED_SD, f"computation measured on {gpu.gpu_model}"
    for measurement in measurements:
        seconds, is_bound = _compute_s(measurement, alone)
        by_batch.setdefault(measurement.batch_per_gpu, []).append(seconds / measurement.grad_accum)
        if is_bound:
            sd, basis = _UPPER_BOUND_SD, f"step measured on several {gpu.gpu_model} taken for computation alone"
    batches = tuple(sorted(by_batch))
    # Of one batch the shortest: on several GPUs the others hold more of what is not computation.
    means = [sum(by_batch[b]) / len(by_batch[b]) if alone else min(by_batch[b]) for b in batches]
    return _Source(gpu, precision, Series(batches, tuple(means)), sd, basis)


def _compute_s(measurement: Measurement, alone: bool) -> tuple[float, bool]:
    """Seconds of computation in a step, and whether that is only an upper bound."""
    if measurement.compute_s is not None:
        return measurement.compute_s, False
    rest_s = measurement.step_s - sum((measurement.exposed_comm_s or 0.0, *measurement.elsewhere_s))
    if rest_s <= 0:
        raise PredictionError(f"measured step of {measurement.step_s} s: its parts add up to more than the step")
    return rest_s, not alone and measurement.exposed_comm_s is None
