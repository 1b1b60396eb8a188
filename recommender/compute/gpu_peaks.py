"""The data sheet of a GPU as the model of operators needs it: peaks by type, power, memory; and classes of precision.

Nothing depends on names of GPUs, so that a GPU that was never measured is treated like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from ddlprof.instance_catalog import Gpu
from ddlprof.recommender.compute.kernel_time import A100, OfAmpere
from ddlprof.recommender.compute.tensor_time import TensorCores
from ddlprof.recommender.errors import PredictionError

TENSOR_CORES_FROM, TF32_FROM = 7.0, 8.0
"""The first compute capabilities with tensor cores, and with tensor cores for TF32 and bf16."""
_SLOW_DOUBLE = 1 / 32
_FP8_FROM = 8.9
_EMULATED = 0.6
"""The share of the fp32 peak that bf16 reaches without tensor cores: 9.85 of 16.4 TFLOP/s on a V100S, 2.8 of 5.5 on a
P4 (zzc0721/torch-performance-test-data, 2025)."""
_TF32_ENERGY, _FP8_ENERGY = 1.8, 0.55
"""The energy of an operation relative to bf16. An assumption: it follows the width of the operands."""

_L2_MB_OF_SM = {7.0: 0.075, 7.5: 0.1, 8.0: 0.37, 8.6: 0.073, 8.9: 0.68, 9.0: 0.38, 10.0: 0.85, 12.0: 0.68}
"""1e6 bytes of L2 cache for each SM, by the first capability with it: V100 6 MB, T4 4, A100 40, RTX 3090 6, L40S 96,
H100 50, B200 126, RTX PRO 6000 128, as their data sheets say. Cards with some memory off have somewhat less or more."""
_SHARES_LOADS_FROM, _SHARES_LOADS_BELOW = 9.0, 12.0
"""Capabilities whose SMs load operands without registers and share them: Hopper, and Blackwell of data centres; that of
workstations (12) computes like Ada."""
_HOPPER_WIDTH = 4096.0
_AMPERE_WIDTH, _MMA_ON_HOPPER = 2048.0, 0.63
"""The width of an A100's SMs; the share of Hopper's peak that products through registers, as on Ampere, can reach (Luo
et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture, 2024)."""


class Matrix(NamedTuple):
    """What the matrix cores of one of AMD's architectures have. They have no compute capability."""

    cache_bytes: float
    """The last cache before memory that all compute units share, of one device."""
    fp8: bool


_MATRIX = {"CDNA 2": Matrix(8e6, False), "CDNA 3": Matrix(256e6, True), "CDNA 4": Matrix(256e6, True)}
"""By architecture: the L2 cache of a GCD of the MI250X, and the Infinity Cache of MI300 and MI350."""
_LIKE = 8.0
"""The capability whose efficiencies AMD's devices are computed with: their compute units load operands through
registers and share no loads, as those of Ampere do."""
_USUAL_CLOCK_HZ = 1.9e9
"""The boost clock where the catalogue has none."""


def matrix_of(gpu: Gpu) -> Matrix | None:
    """What the matrix cores of a GPU of AMD have; None for other GPUs."""
    return _MATRIX.get(gpu.architecture or "")


def lacks_tf32(gpu: Gpu) -> bool:
    """Whether the GPU is known to have no TF32."""
    return not gpu.tf32_tflops if matrix_of(gpu) else is_older(gpu, TF32_FROM) and not gpu.tf32_tflops


def precision_class(precision: str, gpu: Gpu) -> str:
    """The class of a precision such as amp or bf16: `fp32`, `tf32`, `half` (fp16 and bf16, pure or mixed) or `fp8`.

    On a GPU without TF32, `tf32` is `fp32`.
    """
    name = precision.lower()
    if any(part in name for part in ("amp", "16", "half", "mixed")):
        return "half"
    if "tf32" in name:
        return "fp32" if lacks_tf32(gpu) else "tf32"
    if "fp8" in name or "float8" in name:
        return "fp8"
    if name in ("fp32", "float32", "32", "32-true"):
        return "fp32"
    raise PredictionError(f"precision {precision!r} is not known; one of: fp32, tf32, amp, fp16, bf16, fp8")


def peak_tflops(gpu: Gpu, precision: str) -> float | None:
    """The dense peak of a class of precision in 1e12 operations a second, from the data sheet; None: not known, or the
    GPU has none. Of fp8 it is twice that of bf16."""
    if precision == "fp8":
        half = gpu.bf16_tflops or gpu.fp16_tensor_tflops
        return 2 * half if half and _has_fp8(gpu, capability(gpu) or 0.0) else None
    if precision == "half":
        plain = gpu.fp16_tflops or gpu.fp32_tflops
        return gpu.fp16_tensor_tflops or gpu.bf16_tflops or (plain if is_older(gpu, TENSOR_CORES_FROM) else None)
    if precision == "tf32":
        return gpu.tf32_tflops or (gpu.fp32_tflops if lacks_tf32(gpu) else None)
    return gpu.fp32_tflops


def _has_fp8(gpu: Gpu, generation: float) -> bool:
    matrix = matrix_of(gpu)
    return matrix.fp8 if matrix else generation >= _FP8_FROM


def capability(gpu: Gpu) -> float | None:
    """The compute capability as a number, such as 8.6; None: not known."""
    try:
        return float(gpu.compute_capability) if gpu.compute_capability else None
    except ValueError:
        return None


def is_older(gpu: Gpu, first: float) -> bool:
    """Whether the GPU is known to be older than the compute capability `first`, and so lacks what came with it.

    For other GPUs an empty field means that a speed is not known.
    """
    own = capability(gpu)
    return own is not None and own < first


@dataclass(frozen=True)
class Peak:
    """How fast products of one type can be on a GPU."""

    flops_s: float
    tensor: bool
    """Whether tensor cores compute these products."""
    energy: float = 1.0
    """The energy of an operation relative to other types on the same cores."""
    note: str | None = None
    """A sentence about the peak for the basis of the estimate."""


@dataclass(frozen=True)
class GpuPeaks:
    """The facts of one GPU that operators are computed from."""

    name: str
    fp32_flops_s: float
    bandwidth_b_s: float
    memory: str
    """hbm, or gddr for graphics memory."""
    sms: float
    watts: float
    capability: float
    """The compute capability as a number, such as 8.6; for GPUs of AMD that of the GPU they are computed like."""
    peaks: Mapping[str, Peak | None]
    """By type; None: the GPU has the type, but the catalogue does not know its peak."""
    tensor: TensorCores | None
    """None: it has no tensor cores, or the catalogue knows no peak of them."""
    assumed: tuple[str, ...]
    """Sentences on what is missing in the catalogue and was assumed."""
    fitted_maker: bool = True
    """Whether GPUs of its maker are in the fit: NVIDIA's are, AMD's are not."""


def peaks_of(gpu: Gpu) -> GpuPeaks:
    """The peaks of a GPU. Raises `PredictionError` if the catalogue lacks its fp32 peak or memory bandwidth."""
    if not gpu.fp32_tflops or not gpu.memory_bandwidth_gb_s:
        raise PredictionError(f"{gpu.gpu_model}: the catalogue knows no peak speed or bandwidth, choose another GPU")
    fp32 = gpu.fp32_tflops * 1e12
    assumed = []
    sms, watts, generation = gpu.sm_count, gpu.tdp_w, capability(gpu)
    if not sms:
        sms = round((gpu.fp32_cores or 128 * max(1.0, fp32 / 0.45e12)) / 128)
        assumed.append(f"{gpu.gpu_model}: number of SMs assumed, {sms}")
    if not watts:
        watts = 300.0
        assumed.append(f"{gpu.gpu_model}: power limit assumed, {watts:.0f} W")
    matrix = matrix_of(gpu)
    if matrix:
        generation = _LIKE
        assumed.append(f"{gpu.gpu_model}: from its data sheet, with the efficiencies of NVIDIA's Ampere")
    if not generation:
        generation = 8.0
        assumed.append(f"{gpu.gpu_model}: compute capability not known, computed like 8.0")
    return GpuPeaks(
        gpu.gpu_model,
        fp32,
        gpu.memory_bandwidth_gb_s * 1e9,
        "hbm" if (gpu.memory_type or "").upper().startswith("HBM") else "gddr",
        float(sms),
        watts,
        generation,
        _peaks(gpu, generation, fp32),
        _tensor_cores(gpu, generation, float(sms)),
        tuple(assumed),
        matrix is None,
    )


def peak_of(machine: GpuPeaks, dtype: str, tf32: bool) -> Peak:
    """The peak of products of a type. `tf32`: whether fp32 may use TF32.

    Raises `PredictionError` if the GPU lacks the type, or the catalogue its peak.
    """
    name = "tf32" if tf32 and dtype == "fp32" and "tf32" in machine.peaks else dtype
    if name == "fp8" and name not in machine.peaks:
        raise PredictionError(f"{machine.name} has no fp8: ask for bf16 or fp16, or for a GPU with fp8")
    found = machine.peaks.get(name, machine.peaks["fp32"])
    if found is None:
        raise PredictionError(
            f"{machine.name}: the catalogue does not know its peak in {name}: choose another GPU or precision"
        )
    return found


def tensor_cores(half_flops_s: float, sms: float, generation: float, boost_hz: float) -> TensorCores:
    """The SMs by the dense peak of 16-bit types: they do a power of two of operations in a clock, and the clock of the
    peak is near the boost clock."""
    width = 2.0 ** round(math.log2(half_flops_s / sms / boost_hz))
    newest = max((each for each in _L2_MB_OF_SM if each <= generation), default=min(_L2_MB_OF_SM))
    shares_loads = _SHARES_LOADS_FROM <= generation < _SHARES_LOADS_BELOW
    return TensorCores(sms, half_flops_s / sms / width, width, _L2_MB_OF_SM[newest] * 1e6 * sms, shares_loads)


def for_tf32(cores: TensorCores) -> TensorCores:
    """Hopper reads TF32 without registers only where the summed axis is contiguous: libraries use Ampere's kernels."""
    return replace(cores, shares_loads=cores.shares_loads and cores.width > _HOPPER_WIDTH)


def of_ampere(cores: TensorCores) -> OfAmpere:
    """What a kernel of attention does beside products (exponentials, sums, loads) takes the clocks of an SM, however
    many operations its tensor cores do in one. FlashAttention-2 uses 60 % of an A100 so, 34 % of an H100 (published:
    35 %, Shah et al., FlashAttention-3, 2024), 86 % of an RTX 5090 (89 %, gau-nernst) and, with heads of 64, 67 % of an
    RTX A5000 (74 %, gpu-mode/ring-attention issue 10). Blackwell of data centres has kernels of its own, and is taken
    for an A100."""
    if cores.shares_loads:
        return A100 if cores.width > _HOPPER_WIDTH else OfAmpere(1 / _MMA_ON_HOPPER, cores.width / _AMPERE_WIDTH)
    return OfAmpere(1.0, cores.width / _AMPERE_WIDTH)


def _tensor_cores(gpu: Gpu, generation: float, sms: float) -> TensorCores | None:
    half = gpu.fp16_tensor_tflops or gpu.bf16_tflops or 2 * (gpu.tf32_tflops or 0.0)
    if not half:
        return None
    cores = tensor_cores(half * 1e12, sms, generation, (gpu.boost_mhz or 0) * 1e6 or _USUAL_CLOCK_HZ)
    matrix = matrix_of(gpu)
    return replace(cores, l2_bytes=matrix.cache_bytes) if matrix else cores


def _peaks(gpu: Gpu, generation: float, fp32: float) -> Mapping[str, Peak | None]:
    hbm = (gpu.memory_type or "").upper().startswith("HBM")
    half = gpu.fp16_tensor_tflops or gpu.bf16_tflops
    found: dict[str, Peak | None] = {
        "fp32": Peak(fp32, False),
        "fp64": Peak(fp32 * (0.5 if hbm else _SLOW_DOUBLE), False),
    }
    if not lacks_tf32(gpu):
        found["tf32"] = Peak(gpu.tf32_tflops * 1e12, True, _TF32_ENERGY) if gpu.tf32_tflops else None
    if half or not is_older(gpu, TENSOR_CORES_FROM):
        found["fp16"] = Peak(half * 1e12, True) if half else None
    else:
        # P100 (6.0) computes twice as many in fp16; other GPUs without tensor cores compute in fp32.
        found["fp16"] = Peak(
            max(fp32, (gpu.fp16_tflops or 0.0) * 1e12), False, note=f"{gpu.gpu_model} has no tensor cores"
        )
    if generation >= TF32_FROM:
        found["bf16"] = Peak((gpu.bf16_tflops or half or 0.0) * 1e12, True) if half else None
    else:
        note = f"{gpu.gpu_model} has no tensor cores for bf16: products are emulated and slow, fp16 is faster"
        found["bf16"] = Peak(fp32 * _EMULATED, False, note=note)
    if _has_fp8(gpu, generation):
        found["fp8"] = Peak(2 * (gpu.bf16_tflops or half) * 1e12, True, _FP8_ENERGY) if half else None
    return MappingProxyType(found)
