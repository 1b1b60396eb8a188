"""Seconds of the kernels of each kind of operator: products, convolutions, attention, and those that memory binds.

Operators are columns of numbers, so that a whole step is computed at once.

Products of matrices: tiles, waves over the SMs, splits of the summed axis, memory and the power limit. One block
computes one tile of the result; blocks run in waves over the SMs; where there are too few, the summed axis is split.
The best choice of tile and split is taken, as libraries do. Form: `design/prediction.md` of the measurements, after
"wave quantisation" in NVIDIA's Matrix Multiplication Background User's Guide.

Convolutions are one product of the unfolded image, or have fewer operations (Winograd) where that is faster. Winograd's
F(2x2, 3x3) needs 2.25 times fewer multiplications, in one kernel; F(4x4, 3x3) four times fewer, as 36 products between
transforms of the image and of the result (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016).
Depthwise convolutions have kernels of their own, which memory or the CUDA cores bind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.operators import ELEMENT_BYTES, Operator, unaligned_sizes

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_SIZES = 6
_POWER_NORM = 10.0
_SPLITS = np.array([1.0, 2.0, 4.0, 8.0])
_DEPTHWISE_CHANNELS = 4
"""Groups of at most so many output channels are computed by direct kernels."""
_LEAST_TILE = 64 * 128
"""The least tile of a convolution's kernel, in elements."""
_EFFICIENT_SLOWER, _FP32_SLOWER, _WIDE_SLOWER = 2.0, 1.8, 2.0
"""How many times as slow as FlashAttention-2 memory-efficient attention is; how much of the peak of TF32 it uses less
in fp32 than of that of 16 bits in those; how many times as slow again it is in 16 bit with heads of more than 128, set
by LoRA of Gemma 7B on one A100."""
_STRIDED = 2.0
"""Input pixels for each output pixel from which a kernel counts as strided; Winograd's algorithm is then not used."""


@dataclass(frozen=True)
class OperatorTable:
    """One row for each operator, in their order; numbers are those of one call."""

    kind: NDArray[np.str_]
    phase: NDArray[np.str_]
    dtype: NDArray[np.str_]
    sizes: Array
    """(operators, 6): `Operator.shape`, filled up with ones."""
    flops: Array
    bytes: Array
    launches: Array
    count: Array
    grows: NDArray[np.int64]
    """The index of the size that grows with the batch; -1: none."""
    names: tuple[str, ...]
    unaligned: tuple[tuple[int, ...], ...]
    """The sizes of each that do not suit tensor cores."""

    @classmethod
    def of(cls, operators: Sequence[Operator]) -> OperatorTable:
        """Makes a table of operators. Sizes below one become one, as an empty tensor costs a launch."""
        shapes = [(*operator.shape[:_SIZES], *(1,) * (_SIZES - len(operator.shape))) for operator in operators]
        return cls(
            np.array([operator.kind for operator in operators], dtype=np.str_),
            np.array([operator.phase for operator in operators], dtype=np.str_),
            np.array([operator.dtype for operator in operators], dtype=np.str_),
            np.maximum(np.array(shapes, dtype=np.float64).reshape(-1, _SIZES), 1.0),
            np.array([operator.flops for operator in operators], dtype=np.float64),
            np.array([operator.bytes for operator in operators], dtype=np.float64),
            np.array([operator.launches for operator in operators], dtype=np.float64),
            np.array([operator.count for operator in operators], dtype=np.float64),
            np.array([-1 if operator.grows is None else operator.grows for operator in operators], dtype=np.int64),
            tuple(operator.name for operator in operators),
            tuple(map(unaligned_sizes, operators)),
        )

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, chosen: Flags) -> OperatorTable:
        """The rows for which `chosen` is true."""
        kept = np.flatnonzero(chosen).tolist()
        return OperatorTable(
            self.kind[chosen],
            self.phase[chosen],
            self.dtype[chosen],
            self.sizes[chosen],
            self.flops[chosen],
            self.bytes[chosen],
            self.launches[chosen],
            self.count[chosen],
            self.grows[chosen],
            tuple(self.names[row] for row in kept),
            tuple(self.unaligned[row] for row in kept),
        )

    def element_bytes(self) -> Array:
        """The bytes of one element by data type; 4 for unknown types."""
        return np.array([ELEMENT_BYTES.get(str(dtype), 4) for dtype in self.dtype], dtype=np.float64)


@dataclass(frozen=True)
class ProductCoefficients:
    """The fitted coefficients of products on CUDA cores; `tensor_time` has those on tensor cores."""

    tiles: tuple[tuple[float, float, float], ...]
    """Rows and columns of a tile, and the share of an SM's peak that it reaches."""
    wave: float
    """How much of an unfilled last wave is waited for: 0 nothing, 1 all of it."""
    lead_k: float
    """The cost of starting and writing a tile, in elements of the summed axis."""
    memory_share: float
    """The share of the bandwidth that a memory-bound product reaches."""
    sm_gb_s: float
    """1e9 bytes a second that one SM gets from memory at most, however fast memory is."""
    gflop_per_joule: float
    """1e9 operations for each joule at the power limit, at an energy of 1."""
    start_s: float
    """The seconds of a kernel besides its work."""
    batched: float
    """The efficiency of batched products beside that of single ones."""
    norm: float
    """How computing and memory overlap: the power p in (a^p + b^p)^(1/p); large: the longer one alone."""


@dataclass(frozen=True)
class Sizes:
    """b products of m x k by k x n, and the bytes of one call; arrays of the same length."""

    b: Array
    m: Array
    n: Array
    k: Array
    bytes: Array


@dataclass(frozen=True)
class CudaCoreSpeeds:
    """The speeds of the GPU for products of one type on CUDA cores."""

    flops_s: float
    bandwidth_b_s: float
    sms: float
    watts: float
    energy: float
    """The energy of an operation relative to 16 nm."""
    batched: float = 1.0
    """The efficiency of batched products relative to single ones, on this generation relative to others."""
    batched_tiles: tuple[tuple[float, float], ...] = ()
    """Rows and columns of the library's tiles for batched products; empty: all tiles."""


def product_seconds(sizes: Sizes, rates: CudaCoreSpeeds, fitted: ProductCoefficients, splits: bool = True) -> Array:
    """The kernels' seconds of each product. `splits`: whether the summed axis may be split over blocks."""
    tiles = np.array(fitted.tiles)
    # Axes: products, tiles, splits.
    b, m, n, k = (size[:, None, None] for size in (sizes.b, sizes.m, sizes.n, sizes.k))
    high, wide, reached = (tiles[:, column][None, :, None] for column in range(3))
    allowed_splits = _SPLITS if splits else _SPLITS[:1]
    split = np.minimum(allowed_splits[None, None, :], np.maximum(1.0, np.floor(k / 64)))
    blocks = b * np.ceil(m / high) * np.ceil(n / wide) * split
    waves = blocks / rates.sms
    rounds = np.maximum(1.0, waves + fitted.wave * (np.ceil(waves) - waves))
    reached = reached * np.where(b > 1, fitted.batched * rates.batched, 1.0)
    block_flops = 2 * high * wide * (k / split + fitted.lead_k)
    seconds = rounds * block_flops * rates.sms / (rates.flops_s * reached)
    power_flops_s = fitted.gflop_per_joule * 1e9 * rates.watts / rates.energy
    power_s = blocks * block_flops / power_flops_s
    # The clock gives way gradually as the power limit comes near.
    longer = np.maximum(seconds, power_s)
    seconds = longer * ((seconds / longer) ** _POWER_NORM + (power_s / longer) ** _POWER_NORM) ** (1 / _POWER_NORM)
    # The parts of a split are written, and read again by a second kernel that adds them.
    added_s = fitted.start_s + 8 * b * m * n * split / rates.bandwidth_b_s
    seconds = seconds + np.where(split > 1, added_s, 0.0)
    if rates.batched_tiles:
        allowed = np.array([(tile[0], tile[1]) in rates.batched_tiles for tile in fitted.tiles])
        seconds = np.where((b > 1) & ~allowed[None, :, None], np.inf, seconds)
    compute_s = seconds.reshape(len(sizes.b), -1).min(axis=1)
    memory_s = sizes.bytes / min(fitted.memory_share * rates.bandwidth_b_s, fitted.sm_gb_s * 1e9 * rates.sms)
    power = fitted.norm
    result: Array = fitted.start_s + (compute_s**power + memory_s**power) ** (1 / power)
    return result


@dataclass(frozen=True)
class ConvolutionCoefficients:
    """The fitted coefficients of convolutions, relative to products of the same sizes."""

    implicit: float
    """Speed as an implicit product beside a product of those sizes."""
    fused: float
    """Speed of F(2x2, 3x3) beside a product with 2.25 times fewer summed elements."""
    split: float
    """Speed of the products of F(4x4, 3x3) beside batched products."""
    transform_memory: float
    """The share of the bandwidth that its transforms of images reach."""
    filter_memory: float
    """The share of the bandwidth that its transforms of filters reach."""
    direct_flops: float
    """The share of the CUDA cores' peak that a depthwise convolution reaches."""
    direct_memory: float
    """The share of the bandwidth that a depthwise convolution reaches."""


Products = Callable[[Sizes], Array]
"""The seconds of products by kernels as convolutions have them: large tiles, and no split of the summed axis."""


def large_products(rates: CudaCoreSpeeds, fitted: ProductCoefficients) -> Products:
    """Such kernels on CUDA cores."""
    large = replace(fitted, tiles=tuple(tile for tile in fitted.tiles if tile[0] * tile[1] >= _LEAST_TILE))
    return lambda sizes: product_seconds(sizes, rates, large, splits=False)


@dataclass(frozen=True)
class ConvolutionRates:
    """The speeds of the GPU for convolutions of one type."""

    products: Products
    cuda_flops_s: float
    """The speed of depthwise convolutions, by CUDA cores."""
    bandwidth_b_s: float
    winograd: bool
    """Whether the library has Winograd's algorithms: not on tensor cores."""


def convolution_seconds(table: OperatorTable, rates: ConvolutionRates, fitted: ConvolutionCoefficients) -> Array:
    """The kernels' seconds of each convolution; all rows have one type."""
    images, pixels, channels, summed, groups, window = table.sizes.T
    seconds = implicit_seconds(table, rates.products) / fitted.implicit
    if rates.winograd:
        split_s, transforms_s, filters_s = split_seconds(table, rates.products, rates.bandwidth_b_s)
        split_s = split_s / fitted.split + transforms_s / fitted.transform_memory + filters_s / fitted.filter_memory
        fewer = np.minimum(fused_seconds(table, rates.products) / fitted.fused, split_s)
        seconds = np.where((window == 9) & (groups == 1) & ~_strided(table), np.minimum(seconds, fewer), seconds)
    direct = np.maximum(
        2 * images * pixels * channels * summed * groups / (fitted.direct_flops * rates.cuda_flops_s),
        table.bytes / (fitted.direct_memory * rates.bandwidth_b_s),
    )
    depthwise = (groups > 1) & (channels <= _DEPTHWISE_CHANNELS)
    result: Array = np.where(depthwise, np.minimum(direct, seconds), seconds)
    return result


def implicit_seconds(table: OperatorTable, products: Products) -> Array:
    """As one product, at the speed of a product. cuDNN tiles all groups at once: they are not products of a batch."""
    images, pixels, channels, summed, groups, _ = table.sizes.T
    sizes = Sizes(np.ones_like(groups), images * pixels, channels, summed, table.bytes / groups)
    seconds: Array = groups * products(sizes)
    return seconds


def fused_seconds(table: OperatorTable, products: Products) -> Array:
    """F(2x2, 3x3) at the speed of a product."""
    images, pixels, channels, summed, _, _ = table.sizes.T
    sizes = Sizes(np.ones_like(images), images * pixels, channels, summed / 2.25, table.bytes)
    return products(sizes)


def split_seconds(table: OperatorTable, products: Products, bandwidth_b_s: float) -> tuple[Array, Array, Array]:
    """F(4x4, 3x3): its products, and its transforms of images and of filters at the data sheet's bandwidth."""
    images, pixels, channels, summed, _, _ = table.sizes.T
    inputs, element = summed / 9, table.element_bytes()
    patches = images * np.ceil(np.sqrt(pixels) / 4) ** 2
    moved = element * 36 * (patches * (inputs + channels) + inputs * channels)
    sizes = Sizes(np.full_like(images, 36.0), patches, channels, inputs, moved)
    split_s = products(sizes)
    transforms = element * (inputs + channels) * (images * pixels + 36 * patches)
    filters = element * inputs * channels * (9 + 36)
    return split_s, transforms / bandwidth_b_s, filters / bandwidth_b_s


def _strided(table: OperatorTable) -> Flags:
    """Whether the input has many more pixels than the output, according to the bytes."""
    images, pixels, channels, summed, groups, window = table.sizes.T
    inputs = groups * summed / window
    weights, outputs = groups * channels * summed, images * pixels * channels * groups
    elements = table.bytes / table.element_bytes() - weights - outputs
    strided: Flags = elements / (images * inputs) > _STRIDED * pixels
    return strided


@dataclass(frozen=True)
class StreamCoefficients:
    """The fitted coefficients of operators that memory binds."""

    memory: Mapping[str, float]
    """The share of the data sheet's bandwidth that a plain elementwise operator reaches, by the kind of memory."""
    kinds: Mapping[str, float]
    """The speed of a kind of operator relative to that."""
    softmax_columns: tuple[tuple[float, float], ...]
    """The most columns, and the speed of softmax up to there beside `kinds`: longer rows are read more than once."""
    backward: Mapping[str, float]
    """The speed of a kind in backward, if it differs."""


@dataclass(frozen=True)
class FusedCoefficients:
    """Coefficients that are stated, not fitted; see `sources` of the file."""

    attention: Mapping[str, float]
    """The share of the peak that fused attention reaches: forward and backward, on tensor cores and on CUDA cores."""
    attention_columns: float
    """The width of a head at which half of the best share on tensor cores is reached."""
    recurrent_flops: float
    """The share of the peak that a fused recurrent layer reaches."""
    recurrent_step_s: float
    """The least seconds of one time step of one layer."""


def stream_seconds(table: OperatorTable, bandwidth_b_s: float, fitted: StreamCoefficients) -> Array:
    """The seconds of the kernels without launches.

    `bandwidth_b_s`: bytes a second that an elementwise operator reaches.
    """
    speed = np.array(
        [
            (fitted.backward if phase == "backward" else fitted.kinds).get(kind, fitted.kinds.get(kind, 0.5))
            for kind, phase in zip(table.kind.tolist(), table.phase.tolist(), strict=True)
        ]
    )
    softmax = table.kind == "softmax"
    if softmax.any():
        most, faster = np.array(fitted.softmax_columns).T
        column = np.minimum(np.searchsorted(most, table.sizes[:, 1]), len(most) - 1)
        speed = np.where(softmax, speed * faster[column], speed)
    seconds: Array = table.bytes / (bandwidth_b_s * speed)
    return seconds


class OfAmpere(NamedTuple):
    """How a GPU runs kernels that are written for Ampere, beside an A100, in time of products at its own peak."""

    products: float
    """How many times as long products take."""
    beside: float
    """How many times as long all else takes, which SMs do beside their tensor cores."""


A100 = OfAmpere(1.0, 1.0)


def attention_seconds(
    table: OperatorTable,
    flops_s: float,
    bandwidth_b_s: float,
    fitted: FusedCoefficients,
    tensor: bool,
    ampere: OfAmpere = A100,
) -> Array:
    """The kernels' seconds of fused attention. `ampere`: how this GPU runs kernels that are written for Ampere, as
    FlashAttention-2 and PyTorch's memory-efficient kernel are.

    The latter is like the first FlashAttention, than which the second one is 1.7 to 3.0 times as fast (Dao 2023); it
    takes masks and fp32. In fp32 it makes three products of TF32 of each one, whether TF32 is allowed or not
    (`OpMultiplyAddFastF32` of CUTLASS, in mem_eff_attention/gemm_kernel_utils.h of PyTorch). What is beside products is
    not made three times: fp32 takes 3.1 to 4.3 times as long as 16 bits, of which TF32 has half the peak (mean 3.6; its
    authors' tables on an A100, xformers 467 and 587, heads of 64 to 256). On narrow SMs, which have less shared memory,
    its backward is published as a quarter as fast as FlashAttention-2's, so it gains nothing there. Its tiles
    are for heads of 64 and 128, and in backward of 32 (kernels/generate_kernels.py there; RTX 30 and 40 have one of 96,
    which is left out): about half of its products, those that have the width of a head in their result, compute a whole
    tile. In backward, sums of wider heads lie in memory, not in registers (`kOutputInRF` of kernel_backward.h), as
    those in fp32 always do.
    """
    cores = "tensor" if tensor else "cuda"
    share = np.where(
        table.phase == "backward", fitted.attention[f"{cores}_backward"], fitted.attention[f"{cores}_forward"]
    )
    if tensor:
        efficient, flash = (
            np.array([kind in name for name in table.names], dtype=bool) for kind in ("efficient", "flash")
        )
        fp32 = table.dtype == "fp32"
        width = table.sizes[:, 3]
        least = np.where((width <= 32) & (table.phase == "backward"), 32.0, 64.0)
        tile = np.where(efficient & (width <= 128), np.where(width > 64, 128.0, least), width)
        share = share * 2 * tile / (tile + fitted.attention_columns) / (256 / (128 + fitted.attention_columns))
        share = share * 2 * width / (width + tile)
        share = share / np.where(efficient, _EFFICIENT_SLOWER, 1.0)
        share = share / np.where(efficient & (width > 128) & ~fp32, _WIDE_SLOWER, 1.0)
        beside = np.where(flash, ampere.beside, max(ampere.beside, 1.0)) * (1 / share - 1)
        share = np.where(flash | efficient, 1 / (ampere.products + beside), share) / np.where(fp32, _FP32_SLOWER, 1.0)
    seconds: Array = np.maximum(table.flops / (share * flops_s), table.bytes / (0.7 * bandwidth_b_s))
    return seconds


def recurrent_seconds(table: OperatorTable, flops_s: float, bandwidth_b_s: float, fitted: FusedCoefficients) -> Array:
    """The kernels' seconds of fused recurrent layers: steps follow one another."""
    steps, layers = table.sizes[:, 0], table.sizes[:, 3]
    work = np.maximum(table.flops / (fitted.recurrent_flops * flops_s), table.bytes / (0.7 * bandwidth_b_s))
    seconds: Array = np.maximum(work, steps * layers * fitted.recurrent_step_s)
    return seconds
