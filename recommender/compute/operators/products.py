"""Products of matrices: tiles, waves over the SMs, splits of the summed axis, memory and the power limit.

One block computes one tile of the result; blocks run in waves over the SMs; where there are too few, the summed axis is
split. The best choice of tile and split is taken, as libraries do. Form: `design/prediction.md` of the measurements,
after "wave quantisation" in NVIDIA's Matrix Multiplication Background User's Guide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recommender.compute.operators.table import Array

_POWER_NORM = 10.0
_SPLITS = np.array([1.0, 2.0, 4.0, 8.0])


@dataclass(frozen=True)
class ProductCoefficients:
    """What was learned of products, on CUDA cores or on tensor cores."""

    tiles: tuple[tuple[float, float, float], ...]
    """Rows and columns of a tile, and the share of an SM's peak that it reaches."""
    wave: float
    """How much of an unfilled last wave is waited for: 0 nothing, 1 all of it."""
    lead_k: float
    """What starting and writing a tile costs, in elements of the summed axis."""
    memory_share: float
    """The share of the bandwidth that a memory-bound product reaches."""
    sm_gb_s: float
    """1e9 bytes a second that one SM gets from memory at most, however fast memory is."""
    gflop_per_joule: float
    """1e9 operations a second for each watt of the power limit, at an energy of 1."""
    start_s: float
    """What a kernel takes beside its work."""
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
class Rates:
    """What the GPU offers to products of one type."""

    flops_s: float
    bandwidth_b_s: float
    sms: float
    watts: float
    energy: float
    """Energy of an operation beside that of 16 nm."""
    batched: float = 1.0
    """The efficiency of batched products beside that of single ones, on this generation beside others."""
    batched_tiles: tuple[tuple[float, float], ...] = ()
    """The tiles that the library has for batched products, rows by columns; empty: all."""


def product_seconds(sizes: Sizes, rates: Rates, fitted: ProductCoefficients, splits: bool = True) -> Array:
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
