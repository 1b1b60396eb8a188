"""Seconds of products on tensor cores, from the data sheet of any GPU and a few fitted numbers.

One block computes one tile of the result; blocks run in waves over the SMs. A block multiplies, or waits for its
operands, which come from the L2 cache over one port of the SM; then it writes its tile. The clock gives way where power
binds. Everything is counted in clocks and in operations a clock, so that a GPU nobody measured follows from its data
sheet. What differs by kind of SM: from Hopper on, those of data centres load operands without registers, share them
between neighbouring SMs, and write one tile while they compute the next one.

The quantisation by tiles and waves is that of NVIDIA's Matrix Multiplication Background User's Guide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlprof.recommender.compute.kernel_time import Array, Sizes

_TILES = np.array(
    [(256, 256), (128, 256), (256, 128), (128, 128), (64, 256), (256, 64), (64, 128), (128, 64), (64, 64)], dtype=float
)
"""Rows and columns of the result that one block computes."""
_LEAST_CONVOLUTION_TILE = 64 * 128
_SPLITS = np.array([1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0])
_LEAST_SUMMED = 64
"""Each part of a split sums at least so many elements."""
_NARROW, _SHARING = 1024.0, 4096.0
"""16-bit operations a clock of one SM, from which other SMs are scaled: those of Volta and Ada, and of Hopper."""
_WIDENED = 0.6
"""What an SM writes in a clock grows with this power of its width, over A100, L40S, H100 and B200."""
_KNEE_HZ = 1.15e9
"""Below this clock the voltage falls no further, so that the clock is proportional to the power: V100 and T4 are below
it, where GPUs of 4 nm are above it."""
_SHARPNESS, _L2_SHARPNESS = 10.0, 4.0
"""How suddenly power binds, and how suddenly operands no longer fit in the cache."""


@dataclass(frozen=True)
class TensorCores:
    """What the data sheet says of the SMs of a GPU."""

    sms: float
    clock_hz: float
    """The clock of the data sheet's peak."""
    width: float
    """Operations of 16 bits that one SM does in a clock: a power of two."""
    l2_bytes: float
    shares_loads: bool
    """Whether SMs load operands without registers and share them: Hopper, and Blackwell of data centres."""


@dataclass(frozen=True)
class TensorRates:
    """The speeds of a GPU for products of one type."""

    cores: TensorCores
    speed: float
    """The type's operations a second over those of 16 bits."""
    element_bytes: float
    bandwidth_b_s: float
    watts: float
    level: float = 1.0
    """The speed of the SMs of this generation beside the data sheet's."""
    energy: float = 1.0
    """Energy of a clock beside 16-bit types on 4 to 7 nm."""

    @property
    def flops_s(self) -> float:
        """What all SMs can do where neither power nor memory binds."""
        return self.level * self.speed * self.cores.sms * self.cores.clock_hz * self.cores.width


@dataclass(frozen=True)
class TensorCoefficients:
    """The fitted coefficients. Pairs: SMs that load through registers, and those that share loads."""

    efficiency: float
    """The share of an SM's operations that the best tile reaches."""
    load: tuple[float, float]
    """Bytes of operands a clock that an SM loads; those that share get the neighbours' loads too."""
    load_norm: float
    """How loading and multiplying overlap: the power p in (a^p + b^p)^(1/p)."""
    tile_clocks: tuple[float, float]
    """Clocks of a tile besides: the first operands' way. Of the second kind: at 4,096 operations a clock; as their
    width grows, more of it is hidden."""
    tile_store: float
    """Bytes a clock that a block writes of its tile, at 1,024 operations a clock; wider SMs write more."""
    wave: tuple[float, float]
    """How much of an unfilled last wave is waited for: 0 nothing, 1 all of it."""
    l2_store: float
    """Bytes a clock of each SM that the L2 cache serves a whole kernel with, scaled like `tile_store`."""
    l2_share: float
    """The share of the L2 cache that a product can use."""
    read: float
    """The share of the bandwidth that reading operands reaches."""
    write: float
    """The same of writing results."""
    norm: float
    """How computing and memory overlap, as `load_norm`."""
    watts: float
    """Watts for each SM of 1,024 operations, at an energy of 1, at the knee of voltage; with the root of the width."""
    clock_power: float
    """Above the knee the clock grows with this power of the watts."""
    start_s: float
    """Seconds of a kernel besides its work."""
    split_s: float
    """Seconds of adding the parts of a split, besides memory."""


def tensor_product_seconds(
    sizes: Sizes, rates: TensorRates, fitted: TensorCoefficients, convolution: bool = False
) -> Array:
    """The kernels' seconds of each product. Kernels of a `convolution` have large tiles only and split no sums."""
    tiles = _TILES[_TILES.prod(axis=1) >= _LEAST_CONVOLUTION_TILE] if convolution else _TILES
    # Axes: products, tiles, splits.
    b, m, n, k = (size[:, None, None] for size in (sizes.b, sizes.m, sizes.n, sizes.k))
    high, wide = (tiles[:, column][None, :, None] for column in range(2))
    allowed = (_SPLITS[:1] if convolution else _SPLITS)[None, None, :]
    split = np.minimum(allowed, np.maximum(1.0, np.floor(k / _LEAST_SUMMED)))
    blocks = b * np.ceil(m / high) * np.ceil(n / wide) * split
    waves = blocks / rates.cores.sms
    rounds = np.maximum(1.0, waves + _of_kind(fitted.wave, rates) * (np.ceil(waves) - waves))
    seconds = rounds * _block_s(high, wide, k / split, rates, fitted)
    power_s = blocks * 2 * high * wide * (k / split) / power_flops_s(rates, fitted)
    seconds = _overlapped(seconds, power_s, _SHARPNESS)
    # The parts of a split are written, and read again by a second kernel that adds them.
    added_s = fitted.split_s + 8 * b * m * n * split / (fitted.write * rates.bandwidth_b_s)
    compute_s = (seconds + np.where(split > 1, added_s, 0.0)).min(axis=(1, 2))
    result: Array = fitted.start_s + _overlapped(compute_s, _memory_s(sizes, rates, fitted), fitted.norm)
    return result


def power_flops_s(rates: TensorRates, fitted: TensorCoefficients) -> float:
    """Operations a second at the clock that the power limit sustains.

    The energy of an operation falls with the root of the SM's width: wide tensor cores use each operand more often.
    Narrower ones than those of Volta are such whose rate is halved: the same units, idle half of the time.
    """
    cores = rates.cores
    width = cores.width / _NARROW
    needed = fitted.watts * rates.energy * (math.sqrt(width) if width > 1 else width)
    power = rates.watts / cores.sms / needed
    clock: float = _KNEE_HZ * min(power, power**fitted.clock_power)
    return clock * cores.sms * cores.width * rates.speed


def _block_s(high: Array, wide: Array, k: Array, rates: TensorRates, fitted: TensorCoefficients) -> Array:
    """One block, alone on its SM."""
    cores = rates.cores
    multiply_s = 2 * high * wide * cores.sms / (rates.flops_s * fitted.efficiency)
    load_s = rates.element_bytes * (high + wide) / (_of_kind(fitted.load, rates) * cores.clock_hz)
    hidden = _SHARING / cores.width if cores.shares_loads else 1.0
    store = fitted.tile_store * (cores.width / _NARROW) ** _WIDENED
    clocks = hidden * _of_kind(fitted.tile_clocks, rates) + max(rates.element_bytes, 2) * high * wide / store
    found: Array = k * _overlapped(multiply_s, load_s, fitted.load_norm) + clocks / cores.clock_hz
    return found


def _memory_s(sizes: Sizes, rates: TensorRates, fitted: TensorCoefficients) -> Array:
    """Operands and results once each: from memory as far as the L2 cache does not hold them."""
    cores = rates.cores
    written = np.minimum(max(rates.element_bytes, 2) * sizes.b * sizes.m * sizes.n, sizes.bytes)
    missed = 1 - 1 / (1 + (sizes.bytes / (fitted.l2_share * cores.l2_bytes)) ** _L2_SHARPNESS)
    memory_s = missed * ((sizes.bytes - written) / fitted.read + written / fitted.write) / rates.bandwidth_b_s
    l2_b_s = fitted.l2_store * (cores.width / _NARROW) ** _WIDENED * cores.clock_hz * cores.sms
    return _overlapped(memory_s, sizes.bytes / l2_b_s, _L2_SHARPNESS)


def _of_kind(pair: Sequence[float], rates: TensorRates) -> float:
    return pair[1] if rates.cores.shares_loads else pair[0]


def _overlapped(one: Array, other: Array, norm: float) -> Array:
    """(a^p + b^p)^(1/p), computed without overflow."""
    longer = np.maximum(np.maximum(one, other), 1e-15)
    result: Array = longer * ((one / longer) ** norm + (other / longer) ** norm) ** (1 / norm)
    return result
