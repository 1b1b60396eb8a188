"""The content of `operators.json`, written by `scripts/fit/operators.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from ddlprof.base.typed import decode
from ddlprof.recommender.compute.convolution_time import TensorConvolutions
from ddlprof.recommender.compute.kernel_time import (
    ConvolutionCoefficients,
    FusedCoefficients,
    ProductCoefficients,
    StreamCoefficients,
)
from ddlprof.recommender.compute.tensor_time import TensorCoefficients


@dataclass(frozen=True)
class Generation:
    """The efficiencies of one compute capability, relative to the data sheet."""

    capability: float
    cuda: float
    """The efficiency of products on CUDA cores relative to other generations; 1 where it was not measured."""
    batched: float
    """The efficiency of batched products on CUDA cores, relative to `cuda`."""
    tensor: float
    """The speed of tensor cores, where power does not bind, beside the data sheet's."""
    memory: float
    """The share of the data sheet's bandwidth that elementwise operators reach, relative to that of the kind of
    memory."""
    cuda_energy: float
    """The energy of an operation on CUDA cores relative to 16 nm."""
    tensor_energy: float
    """Energy of a clock of an SM's tensor cores beside that of 4 to 7 nm."""
    batched_tiles: tuple[tuple[float, float], ...]
    """The tiles that the library has for batched fp32 products, rows by columns; empty: all of them."""


def generation_of(capability: float, known: Sequence[Generation]) -> Generation:
    """The generation of a compute capability, or the newest older one that was measured.

    `known`: sorted by capability.
    """
    older = [generation for generation in known if generation.capability <= capability + 1e-6]
    return older[-1] if older else known[0]


@dataclass(frozen=True)
class HostCoefficients:
    """The cost of dispatching an operator on the host, which overlaps with the GPU."""

    forward_s: float
    """Seconds of a call in forward: Python and the dispatcher."""
    backward_s: float
    optimizer_s: float
    kernel_s: float
    """The least seconds of a kernel on the GPU beside its work, which is the time from one kernel to the next."""
    compiled: float
    """The factor on the host's seconds of a call under torch.compile."""


@dataclass(frozen=True)
class Deviations:
    """Standard deviations of the logarithm of seconds, from errors on GPUs and models left out of the fit."""

    gpu: float
    """For a GPU that was not measured."""
    known_generation: float
    """For a GPU of a compute capability that was measured."""
    within: float
    """For a model on a GPU whose efficiency is known from another model or a probe."""
    assumed: float
    """For operators whose efficiency is stated, not fitted: fused attention, recurrent layers, ..."""
    convolution: float
    """For convolutions, whose algorithm the library chooses."""
    unfitted: float
    """For operators of kind `other`, and for data types that were not fitted."""
    host: float
    """For steps that are bound by the host."""
    generation: float
    """Added for GPUs outside of the fitted generations."""
    precision: float
    """Added for precisions of which no whole model was measured."""
    tensor: float
    """Products on tensor cores of a GPU that nobody measured, but of whose generation products were measured."""
    tensor_generation: float
    """The same of a generation without measured products."""


@dataclass(frozen=True)
class OperatorCoefficients:
    """All fitted coefficients of operators."""

    cuda: ProductCoefficients
    tensor: TensorCoefficients
    convolution: ConvolutionCoefficients
    convolution_16: TensorConvolutions
    """Convolutions in 16 bits on tensor cores, written by `scripts/fit/convolutions.py`."""
    streams: StreamCoefficients
    fused: FusedCoefficients
    host: HostCoefficients
    deviations: Deviations
    generations: tuple[Generation, ...]
    """In the order of capabilities."""
    measured: tuple[float, ...]
    """The compute capabilities that whole models were measured on."""
    tensor_measured: tuple[float, ...]
    """Those that products on tensor cores were measured on, of all shapes."""


@lru_cache(maxsize=1)
def shipped() -> OperatorCoefficients:
    """The coefficients of the package, read once."""
    text = files("ddlprof.recommender").joinpath("compute/operators.json").read_text(encoding="utf-8")
    return decode(OperatorCoefficients, json.loads(text))
