"""Convolutions: as one product of the unfolded image, or with fewer operations (Winograd, FFT) where that is faster.

Depthwise ones have kernels of their own, which memory or the CUDA cores bind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recommender.compute.operators.products import ProductCoefficients, Rates, Sizes, product_seconds
from recommender.compute.operators.table import Array, OperatorTable

_DEPTHWISE_CHANNELS = 4
"""Groups of at most so many output channels are computed by direct kernels."""


@dataclass(frozen=True)
class ConvolutionCoefficients:
    """What was learned of convolutions, beside products of the same sizes."""

    product: float
    """Speed as an implicit product beside a product of those sizes."""
    winograd: float
    """Operations of a 3 x 3 kernel by Winograd's algorithm over the direct ones, with what its transforms cost."""
    winograd_memory: float
    """Bytes that its transforms move, over those of the operands."""
    direct_flops: float
    """The share of the CUDA cores' peak that a depthwise convolution reaches."""
    direct_memory: float
    """The share of the bandwidth that a depthwise convolution reaches."""


def convolution_seconds(
    table: OperatorTable, rates: Rates, products: ProductCoefficients, fitted: ConvolutionCoefficients, tensor: bool
) -> Array:
    """The kernels' seconds of each convolution; all rows have one type. Tensor cores have no Winograd."""
    images, pixels, channels, summed, groups, window = table.sizes.T
    sizes = Sizes(groups, images * pixels, channels, summed, table.bytes)
    # cuDNN tiles all groups at once: a group is not a product of a batch.
    seconds = product_seconds(sizes, rates, products) / fitted.product
    if not tensor:
        fewer = product_seconds(
            Sizes(groups, images * pixels, channels, summed * fitted.winograd, table.bytes * fitted.winograd_memory),
            rates,
            products,
        )
        seconds = np.where(window == 9, np.minimum(seconds, fewer), seconds)
    direct = np.maximum(
        2 * images * pixels * channels * summed * groups / (fitted.direct_flops * rates.flops_s / (8 if tensor else 1)),
        table.bytes / (fitted.direct_memory * rates.bandwidth_b_s),
    )
    depthwise = (groups > 1) & (channels <= _DEPTHWISE_CHANNELS)
    result: Array = np.where(depthwise, np.minimum(direct, seconds), seconds)
    return result
