"""Classes of precision, and the peak speed of a GPU in each."""

from __future__ import annotations

from instance_catalog import Gpu
from recommender.errors import PredictionError


def precision_class(precision: str, gpu: Gpu) -> str:
    """`fp32`, `tf32`, `half` (fp16 and bf16, pure or mixed) or `fp8` of a name such as amp, bf16 or fp16; a GPU without
    TF32 computes it in FP32."""
    name = precision.lower()
    if any(part in name for part in ("amp", "16", "half", "mixed")):
        return "half"
    if "tf32" in name:
        return "tf32" if gpu.tf32_tflops else "fp32"
    if "fp8" in name or "float8" in name:
        return "fp8"
    if name in ("fp32", "float32", "32", "32-true"):
        return "fp32"
    raise PredictionError(f"precision {precision!r} is not known; one of: fp32, tf32, amp, fp16, bf16, fp8")


def peak_tflops(gpu: Gpu, precision: str) -> float | None:
    """1e12 operations a second of a class of precision, of the data sheet; None: not known."""
    if precision == "half":
        return gpu.fp16_tensor_tflops or gpu.bf16_tflops or gpu.fp16_tflops or gpu.fp32_tflops
    if precision == "tf32":
        return gpu.tf32_tflops or gpu.fp32_tflops
    return gpu.fp32_tflops
