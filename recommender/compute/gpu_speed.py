"""How fast a GPU computes at a precision, from its data sheet and what was measured on it or its generation.

A speed is the logarithm of `peak ** share * bandwidth ** (1 - share)` plus learned offsets; only differences count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from instance_catalog import Gpu
from recommender.errors import PredictionError

PRECISIONS = ("fp32", "tf32", "half")
"""Classes of precision: `half` is fp16 and bf16, pure or mixed (amp)."""


@dataclass(frozen=True)
class Speed:
    """Natural logarithm of a GPU's speed."""

    log: float
    sd: float
    seen: bool
    """Whether the sources of the fit measured the GPU at this precision."""


@dataclass(frozen=True)
class Offset:
    """What was learned of one GPU at one precision."""

    log: float
    sd: float


@dataclass(frozen=True)
class Speeds:
    """Fitted by `scripts/fit/compute.py`."""

    share: Mapping[str, float]
    """How much the peak counts, by precision; the rest is memory bandwidth."""
    precision: Mapping[str, float]
    """The offset of a precision from fp32."""
    architecture: Mapping[str, float]
    unmeasured: Mapping[str, float]
    """Offsets of architectures that no source measured: between those of the next older and newer ones."""
    gpus: Mapping[str, Mapping[str, Offset]]
    """The offsets by GPU and precision; they include the architecture's and the precision's."""
    new_gpu_sd: float
    """Standard deviation for a GPU that no source measured, of an architecture that one did."""
    new_architecture_sd: float

    def of(self, gpu: Gpu, precision: str) -> Speed:
        """The speed of a GPU at a class of precision. Raises `PredictionError` where the data sheet is too empty."""
        nominal = nominal_log_speed(gpu, precision, self.share[precision])
        learned = self.gpus.get(gpu.gpu_model, {}).get(precision)
        if learned is not None:
            return Speed(nominal + learned.log, learned.sd, seen=True)
        architecture = gpu.architecture.split()[0] if gpu.architecture else ""
        known = architecture in self.architecture
        offset = self.precision[precision] + (
            self.architecture[architecture] if known else self.unmeasured.get(architecture, 0.0)
        )
        return Speed(nominal + offset, self.new_gpu_sd if known else self.new_architecture_sd, seen=False)


def precision_class(precision: str, gpu: Gpu) -> str:
    """`fp32`, `tf32` or `half` of a name such as amp, bf16 or fp16; a GPU without TF32 computes it in FP32."""
    name = precision.lower()
    if any(part in name for part in ("amp", "16", "half", "mixed")):
        return "half"
    if "tf32" in name:
        return "tf32" if gpu.tf32_tflops else "fp32"
    if name in ("fp32", "float32", "32", "32-true"):
        return "fp32"
    raise PredictionError(f"precision {precision!r} is not known; one of: fp32, tf32, amp, fp16, bf16")


def nominal_log_speed(gpu: Gpu, precision: str, share: float) -> float:
    """The weighted TFLOPS and GB/s of the data sheet alone. Raises `PredictionError` where one is not known."""
    peak = peak_tflops(gpu, precision)
    if not peak or not gpu.memory_bandwidth_gb_s:
        raise PredictionError(f"{gpu.gpu_model}: the catalogue knows no peak speed or bandwidth, choose another GPU")
    return share * math.log(peak) + (1 - share) * math.log(gpu.memory_bandwidth_gb_s)


def peak_tflops(gpu: Gpu, precision: str) -> float | None:
    """1e12 operations a second of a class of precision, of the data sheet; None: not known."""
    if precision == "half":
        return gpu.fp16_tensor_tflops or gpu.bf16_tflops or gpu.fp16_tflops or gpu.fp32_tflops
    if precision == "tf32":
        return gpu.tf32_tflops or gpu.fp32_tflops
    return gpu.fp32_tflops
