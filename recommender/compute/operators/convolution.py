"""Convolutions: as one product of the unfolded image, or with fewer operations (Winograd) where that is faster.

Winograd's F(2x2, 3x3) needs 2.25 times fewer multiplications, in one kernel; F(4x4, 3x3) four times fewer, as 36
products between transforms of the image and of the result (Lavin and Gray, Fast Algorithms for Convolutional Neural
Networks, 2016). Depthwise convolutions have kernels of their own, which memory or the CUDA cores bind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from recommender.compute.operators.products import ProductCoefficients, Rates, Sizes, product_seconds
from recommender.compute.operators.table import Array, Flags, OperatorTable

_DEPTHWISE_CHANNELS = 4
"""Groups of at most so many output channels are computed by direct kernels."""
_LEAST_TILE = 64 * 128
"""The least tile of a convolution's kernel, in elements."""
_STRIDED = 2.0
"""Input pixels for each output pixel, from where the kernel is taken to jump: Winograd's algorithm does not."""


@dataclass(frozen=True)
class ConvolutionCoefficients:
    """What was learned of convolutions, beside products of the same sizes."""

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


def convolution_seconds(
    table: OperatorTable, rates: Rates, products: ProductCoefficients, fitted: ConvolutionCoefficients, tensor: bool
) -> Array:
    """The kernels' seconds of each convolution; all rows have one type. Tensor cores have no Winograd."""
    images, pixels, channels, summed, groups, window = table.sizes.T
    seconds = implicit_seconds(table, rates, products) / fitted.implicit
    if not tensor:
        split_s, transforms_s, filters_s = split_seconds(table, rates, products)
        split_s = split_s / fitted.split + transforms_s / fitted.transform_memory + filters_s / fitted.filter_memory
        fewer = np.minimum(fused_seconds(table, rates, products) / fitted.fused, split_s)
        seconds = np.where((window == 9) & (groups == 1) & ~_strided(table), np.minimum(seconds, fewer), seconds)
    direct = np.maximum(
        2 * images * pixels * channels * summed * groups / (fitted.direct_flops * rates.flops_s / (8 if tensor else 1)),
        table.bytes / (fitted.direct_memory * rates.bandwidth_b_s),
    )
    depthwise = (groups > 1) & (channels <= _DEPTHWISE_CHANNELS)
    result: Array = np.where(depthwise, np.minimum(direct, seconds), seconds)
    return result


def implicit_seconds(table: OperatorTable, rates: Rates, products: ProductCoefficients) -> Array:
    """As one product, at the speed of a product. cuDNN tiles all groups at once: they are not products of a batch."""
    images, pixels, channels, summed, groups, _ = table.sizes.T
    sizes = Sizes(np.ones_like(groups), images * pixels, channels, summed, table.bytes / groups)
    seconds: Array = groups * product_seconds(sizes, rates, _large(products), splits=False)
    return seconds


def fused_seconds(table: OperatorTable, rates: Rates, products: ProductCoefficients) -> Array:
    """F(2x2, 3x3) at the speed of a product."""
    images, pixels, channels, summed, _, _ = table.sizes.T
    sizes = Sizes(np.ones_like(images), images * pixels, channels, summed / 2.25, table.bytes)
    return product_seconds(sizes, rates, _large(products), splits=False)


def split_seconds(table: OperatorTable, rates: Rates, products: ProductCoefficients) -> tuple[Array, Array, Array]:
    """F(4x4, 3x3): its products, and its transforms of images and of filters at the data sheet's bandwidth."""
    images, pixels, channels, summed, _, _ = table.sizes.T
    inputs, element = summed / 9, table.element_bytes()
    patches = images * np.ceil(np.sqrt(pixels) / 4) ** 2
    moved = element * 36 * (patches * (inputs + channels) + inputs * channels)
    sizes = Sizes(np.full_like(images, 36.0), patches, channels, inputs, moved)
    split_s = product_seconds(sizes, rates, _large(products), splits=False)
    transforms = element * (inputs + channels) * (images * pixels + 36 * patches)
    filters = element * inputs * channels * (9 + 36)
    return split_s, transforms / rates.bandwidth_b_s, filters / rates.bandwidth_b_s


def _large(products: ProductCoefficients) -> ProductCoefficients:
    """Kernels of convolutions have large tiles only."""
    return replace(products, tiles=tuple(tile for tile in products.tiles if tile[0] * tile[1] >= _LEAST_TILE))


def _strided(table: OperatorTable) -> Flags:
    """Whether the input has many more pixels than the output, by the bytes."""
    images, pixels, channels, summed, groups, window = table.sizes.T
    inputs = groups * summed / window
    weights, outputs = groups * channels * summed, images * pixels * channels * groups
    elements = table.bytes / table.element_bytes() - weights - outputs
    strided: Flags = elements / (images * inputs) > _STRIDED * pixels
    return strided
