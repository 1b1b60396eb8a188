"""The seconds of one micro-batch on a GPU, in parts that different evidence can correct.

From the operators of the step if they are known, else from FLOPs and parameter tensors with the proportions of typical
models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ddlprof.base.units import scaled
from ddlprof.instance_catalog import Catalog, Gpu
from ddlprof.model.operators import Checkpointing, StepOperators
from ddlprof.recommender.compute.adapters import targets_in_words
from ddlprof.recommender.compute.gpu_peaks import peak_tflops, precision_class
from ddlprof.recommender.compute.host import TYPICAL, Host
from ddlprof.recommender.compute.least_time import NO_TIME, LeastTime, least_of_flops, least_time
from ddlprof.recommender.compute.operator_time import OperatorModel
from ddlprof.recommender.compute.what_if import as_asked
from ddlprof.recommender.errors import PredictionError

Array = NDArray[np.float64]

PARTS = ("compute", "memory", "fixed", "launch", "overhead")
"""compute: products, convolutions and the like, as on a large batch. memory: the operators that memory binds, likewise.
fixed: what the GPU takes beyond these because the batch is small (unfilled waves, weights, starting kernels). launch:
the host's dispatch of all kernels. overhead: what the host does once in a step."""
SECONDS, BYTES_PER_FLOP = 5e-4, 1 / 35
"""The assumed seconds of overhead in a step, and the bytes that memory-bound operators move for each FLOP in typical
models."""
OVERLAP = 3.0
"""The power of a power mean: GPU and host overlap, but wait for each other if both take about as long."""
_LARGE = 16
"""A batch larger by this factor is taken as large: its fixed part is negligible."""
_REACHED_PEAK, _REACHED_BANDWIDTH = 0.55, 0.8
_LAUNCHES_PER_TENSOR, _TENSORS = 4.5, 160
"""Kernels of a step for each parameter tensor; the assumed tensors where they were not counted."""
_DISPATCH_S, _KERNEL_S = 1.2e-5, 6e-6


@dataclass(frozen=True)
class Changes:
    """Changes to the counted step; None: unchanged."""

    optimizer: str | None = None
    checkpointing: Checkpointing | None = None
    compiled: bool | None = None
    channels_last: bool | None = None
    lora: int | None = None
    qlora: int | None = None
    deepspeed: int | None = None
    lora_targets: str | None = None
    lora_precision: str | None = None
    qlora_format: str | None = None
    lora_dropout: bool | None = None

    @classmethod
    def of(cls, asked: Any) -> Changes:
        """The changes in what has these fields among others: a `Target`, or `Settings`."""
        return cls(**{each.name: getattr(asked, each.name) for each in fields(cls)})


AS_COUNTED = Changes()
"""No change."""


@dataclass(frozen=True)
class StepParts:
    """One micro-batch and one update on one GPU, before any correction."""

    seconds: Array
    """(5,): by part, in the order of `PARTS`."""
    sd: float
    """The standard deviation of the logarithm that operators of kinds without a fit add."""
    phases: tuple[float, float, float] | None
    """Seconds of forward, backward and optimizer before any correction; None: not known."""
    basis: tuple[str, ...]
    extrapolated: bool
    slower: float = 1.0
    """How many times as long the phases take if the host is as slow as is allowed for."""
    learned_sd: float | None = None
    """The standard deviation of the logarithm of the step, where runs of the user's own corrected the parts."""
    least: LeastTime = NO_TIME
    """What no software can be faster than."""


class PartsSource(Protocol):
    """Gives the parts of a job's step on any GPU."""

    @property
    def knowledge(self) -> str:
        """The source of the parts: `operators`, `flops` or `steps`."""

    def at(self, gpu: Gpu, batch: int, precision: str, changes: Changes, host: Host = TYPICAL) -> StepParts:
        """The parts at a batch and a precision, in any usual spelling. Raises `PredictionError`.

        The host counts for the phases alone: what steps were measured for is corrected for a host of the fit.
        """


def total_s(seconds: Array) -> Array:
    """The seconds of the step from its parts, of shape (5,) or (5, n), with GPU and host overlapping."""
    gpu_s, host_s = seconds[:3].sum(axis=0), seconds[3:].sum(axis=0)
    result: Array = (gpu_s**OVERLAP + host_s**OVERLAP) ** (1 / OVERLAP)
    return result


def shares(seconds: Array) -> Array:
    """The weight of each part: the derivative of the logarithm of `total_s` by that of the part. Same shape."""
    gpu_s, host_s = seconds[:3].sum(axis=0), seconds[3:].sum(axis=0)
    host = host_s**OVERLAP / (gpu_s**OVERLAP + host_s**OVERLAP)
    return np.concatenate([(1 - host) * seconds[:3] / gpu_s, host * seconds[3:] / host_s])


class OperatorParts:
    """The parts from the operators of the step."""

    knowledge = "operators"

    def __init__(self, step: StepOperators, catalog: Catalog, model: OperatorModel | None = None) -> None:
        self._step, self._catalog = step, catalog
        self._model = model or OperatorModel.shipped()
        self._asked = lru_cache(maxsize=64)(self._asked_now)

    def _asked_now(self, batch: int, precision: str, changes: Changes) -> StepOperators:
        return as_asked(self._step, batch=batch, precision=precision, **vars(changes))

    def at(self, gpu: Gpu, batch: int, precision: str, changes: Changes, host: Host = TYPICAL) -> StepParts:
        """Raises `PredictionError` if the GPU lacks the precision, or the catalogue its peak."""
        step, reached = self._asked(batch, precision, changes), self._catalog.reached_by(gpu.gpu_model)
        tf32 = precision == "tf32"
        found = self._model.step(step, gpu, tf32, reached, host)
        now = found.spent
        many = max(_LARGE * batch, 4 * _LARGE * self._step.batch)
        later = self._model.spent(self._asked(many, precision, changes), gpu, tf32, reached)
        computing_s = min(later.computing_s * batch / many, now.computing_s)
        streaming_s = min(later.streaming_s * batch / many, now.streaming_s)
        fixed_s = now.computing_s + now.streaming_s - computing_s - streaming_s
        seconds = np.array([computing_s, streaming_s, fixed_s, now.dispatch_s, SECONDS])
        has_adapters = (changes.lora or changes.qlora) is not None
        adapted = (targets_in_words(self._step, changes.lora_targets),) if has_adapters else ()
        return StepParts(
            np.maximum(seconds, 1e-9), found.unfitted_share, (found.forward_s, found.backward_s, found.optimizer_s),
            (*found.basis, *adapted), found.extrapolated, slower=found.slow_s / max(found.step_s, 1e-12),
            least=least_time(step, gpu, tf32),
        )  # fmt: skip


class FlopParts:
    """The parts from FLOPs and the number of parameter tensors, with the proportions of typical models."""

    def __init__(self, flops_per_sample: float, tensors: float | None, knowledge: str = "flops") -> None:
        self._flops, self._tensors, self.knowledge = flops_per_sample, tensors or _TENSORS, knowledge

    def at(self, gpu: Gpu, batch: int, precision: str, changes: Changes, host: Host = TYPICAL) -> StepParts:
        """See `PartsSource.at`. Raises `PredictionError` if the data sheet lacks peak or bandwidth."""
        kind = precision_class(precision, gpu)
        if kind == "fp8":
            raise PredictionError(f"precision {precision!r} can only be predicted from the operators of the step")
        peak, bandwidth = peak_tflops(gpu, kind), gpu.memory_bandwidth_gb_s
        if not peak or not bandwidth:
            raise PredictionError(
                f"{gpu.gpu_model}: the catalogue knows no peak speed or bandwidth, choose another GPU"
            )
        flops, launches = self._flops * batch, _LAUNCHES_PER_TENSOR * self._tensors
        seconds = np.array(
            [
                flops / (_REACHED_PEAK * peak * 1e12),
                BYTES_PER_FLOP * flops / (_REACHED_BANDWIDTH * bandwidth * 1e9),
                launches * _KERNEL_S,
                launches * _DISPATCH_S,
                SECONDS,
            ]
        )
        alone = f"FLOPs alone, {scaled(self._flops, 'FLOP')} a sample"
        known = "the measured steps" if self.knowledge == "steps" else alone
        # FLOPs that were chosen to reproduce a measured step are no count.
        least = NO_TIME if self.knowledge == "steps" else least_of_flops(flops, gpu, kind)
        return StepParts(np.maximum(seconds, 1e-9), 0.0, None, (f"computation from {known}",), False, least=least)

    def scaled_to(self, seconds: float, gpu: Gpu, batch: int, precision: str) -> FlopParts:
        """The parts with FLOPs chosen so that this step takes `seconds`, of which launches take at most half."""
        host_s = float(self.at(gpu, batch, precision, Changes()).seconds[3:].sum())
        tensors = self._tensors * min(1.0, seconds / 2 / host_s)
        flops = self._flops
        for _ in range(60):
            tried = FlopParts(flops, tensors, self.knowledge)
            ratio = seconds / float(total_s(tried.at(gpu, batch, precision, Changes()).seconds))
            flops *= min(max(ratio, 0.1), 10.0)
            if abs(math.log(ratio)) < 0.01 or flops < 1.0:
                break
        return FlopParts(max(flops, 1.0), tensors, self.knowledge)
