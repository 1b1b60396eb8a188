"""Classes of precision, and the peak speed of a GPU in each."""

from __future__ import annotations

from instance_catalog import Gpu
from recommender.errors import PredictionError

TENSOR_CORES_FROM, TF32_FROM = 7.0, 8.0
"""The first compute capabilities with tensor cores, and with tensor cores for TF32 and bf16."""


def precision_class(precision: str, gpu: Gpu) -> str:
    """`fp32`, `tf32`, `half` (fp16 and bf16, pure or mixed) or `fp8` of a name such as amp, bf16 or fp16; a GPU without
    TF32 computes it in FP32."""
    name = precision.lower()
    if any(part in name for part in ("amp", "16", "half", "mixed")):
        return "half"
    if "tf32" in name:
        return "fp32" if is_older(gpu, TF32_FROM) and not gpu.tf32_tflops else "tf32"
    if "fp8" in name or "float8" in name:
        return "fp8"
    if name in ("fp32", "float32", "32", "32-true"):
        return "fp32"
    raise PredictionError(f"precision {precision!r} is not known; one of: fp32, tf32, amp, fp16, bf16, fp8")


def peak_tflops(gpu: Gpu, precision: str) -> float | None:
    """1e12 operations a second of a class of precision, of the data sheet; None: not known."""
    if precision == "half":
        plain = gpu.fp16_tflops or gpu.fp32_tflops
        return gpu.fp16_tensor_tflops or gpu.bf16_tflops or (plain if is_older(gpu, TENSOR_CORES_FROM) else None)
    if precision == "tf32":
        return gpu.tf32_tflops or (gpu.fp32_tflops if is_older(gpu, TF32_FROM) else None)
    return gpu.fp32_tflops


def capability(gpu: Gpu) -> float | None:
    """The compute capability as a number, such as 8.6; None: not known."""
    try:
        return float(gpu.compute_capability) if gpu.compute_capability else None
    except ValueError:
        return None


def is_older(gpu: Gpu, first: float) -> bool:
    """Whether the GPU is known to lack what came with the compute capability `first`.

    An empty field of any other GPU is a speed that is not known.
    """
    own = capability(gpu)
    return own is not None and own < first
