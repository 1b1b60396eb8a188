"""Seconds of convolutions in 16 bits on tensor cores, by where their channels lie in memory.

Libraries compute with channels last and copy tensors whose channels lie first. Groups and depthwise convolutions have
kernels of their own, which differ by layout. Fitted to pairs of steps of networks that were measured with both layouts
(`scripts/fit/convolutions.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlprof.recommender.compute.kernel_time import Array, Flags, OperatorTable

WIDTH = 512.0
"""Operations a clock of an SM of the GPU of the pairs, in 16 bits."""
_ALIGNED = 8
"""Channels in 16 bits that one load of 16 bytes holds."""
_IN_EIGHTS, _LARGE_GROUP = 8, 64
"""With channels last, only such multiples of groups, of fewer channels, and as many out as in, have fast kernels: those
of ResNeXt do, those of RegNet, NFNet, ResNeSt and RepVGG do not."""
_WIDE_GROUP = 128
"""With channels last, groups without fast kernels that read or make so many channels reach more: kernels compute tiles
of 128 channels, which narrower groups leave empty."""
_LARGE_WINDOW = 49
"""With channels last, depthwise windows of more pixels have no fast kernel."""


@dataclass(frozen=True)
class GroupedSpeeds:
    """Convolutions in groups: both are shares of the data sheet."""

    flops: float
    """Of the operations of tensor cores; those of CUDA cores in fp32 for depthwise convolutions."""
    memory: float
    """Of the bandwidth of elementwise operators."""


@dataclass(frozen=True)
class TensorConvolutions:
    """The fitted coefficients."""

    implicit: float
    """Speed as an implicit product beside a product of those sizes."""
    copies: float
    """The share of the bandwidth at which tensors with channels first are copied to the other layout and back."""
    padding: float
    """The same of tensors with channels last whose channels are no multiples of 8."""
    grouped_first: GroupedSpeeds
    grouped_last: GroupedSpeeds
    """For groups that have fast kernels."""
    slow_groups: float
    """The share of the tensor cores' operations that other groups with channels last reach."""
    slow_wide: float
    """The same of groups of 128 channels and more."""
    depthwise_first: GroupedSpeeds
    depthwise_last: GroupedSpeeds
    """For windows of up to 7 x 7."""
    slow_windows: float
    """The share of the operations of CUDA cores that larger depthwise windows reach."""
    width: float
    """The seconds of convolutions, but depthwise ones, grow with this power of the SM's width over that of the pairs:
    operands of a window are gathered no faster for wider tensor cores."""
    streams: float
    """Speed of norms and elementwise operators with channels last beside channels first."""


@dataclass(frozen=True)
class ConvolvingGpu:
    """The speeds of a GPU for convolutions in 16 bits."""

    tensor_flops_s: float
    cuda_flops_s: float
    """In fp32."""
    bandwidth_b_s: float
    """What an elementwise operator reaches."""
    width: float
    """Operations of 16 bits that one SM does in a clock."""


def tensor_convolution_seconds(
    table: OperatorTable, implicit_s: Array, gpu: ConvolvingGpu, fitted: TensorConvolutions, channels_last: bool
) -> Array:
    """The kernels' seconds of each convolution. `implicit_s`: of the products of their sizes."""
    _, _, made, summed, groups, window = table.sizes.T
    read = summed / window
    memory_s = table.bytes / gpu.bandwidth_b_s
    wider = (gpu.width / WIDTH) ** fitted.width
    unaligned = (made % _ALIGNED > 0) | (read % _ALIGNED > 0)
    copied_s = np.where(unaligned, memory_s / fitted.padding, 0.0) if channels_last else memory_s / fitted.copies
    depthwise = (groups > 1) & (np.minimum(made, read) <= 1)

    def together(computing_s: Array, speeds: GroupedSpeeds, slow: Flags, slow_flops: float | Array) -> Array:
        reached = np.where(slow & channels_last, slow_flops, speeds.flops)
        return np.asarray(np.hypot(computing_s / reached, memory_s / speeds.memory))

    fast = (groups % _IN_EIGHTS == 0) & (made == read) & (made < _LARGE_GROUP)
    slow_flops = np.where(np.maximum(made, read) < _WIDE_GROUP, fitted.slow_groups, fitted.slow_wide)
    grouped = fitted.grouped_last if channels_last else fitted.grouped_first
    single = fitted.depthwise_last if channels_last else fitted.depthwise_first
    result: Array = np.where(
        groups == 1,
        wider * implicit_s / fitted.implicit + copied_s,
        np.where(
            depthwise,
            together(table.flops / gpu.cuda_flops_s, single, window > _LARGE_WINDOW, fitted.slow_windows),
            together(wider * table.flops / gpu.tensor_flops_s, grouped, ~fast, slow_flops),
        ),
    )
    return result
