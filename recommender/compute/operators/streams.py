"""Operators that memory binds: bytes over the bandwidth that their kind reaches. And fused attention and RNNs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from recommender.compute.operators.products import Rates
from recommender.compute.operators.table import Array, OperatorTable


@dataclass(frozen=True)
class StreamCoefficients:
    """What was learned of operators that memory binds."""

    memory: Mapping[str, float]
    """The share of the data sheet's bandwidth that a plain elementwise operator reaches, by the kind of memory."""
    kinds: Mapping[str, float]
    """The speed of a kind beside it."""
    softmax_columns: tuple[tuple[float, float], ...]
    """The most columns, and the speed of softmax up to there beside `kinds`: longer rows are read more than once."""
    backward: Mapping[str, float]
    """The same in backward, where it differs."""


@dataclass(frozen=True)
class FusedCoefficients:
    """Stated rather than fitted: see `sources` of the file."""

    attention: Mapping[str, float]
    """Share of the peak that a fused attention reaches: forward and backward, on tensor cores and on CUDA cores."""
    attention_columns: float
    """Width of a head at which half of the tensor cores' best is reached."""
    recurrent_flops: float
    """Share of the peak that a fused recurrent layer reaches."""
    recurrent_step_s: float
    """The least seconds of one step through time of one layer."""


def stream_seconds(table: OperatorTable, bandwidth_b_s: float, fitted: StreamCoefficients) -> Array:
    """The kernels' seconds, without launches; `bandwidth_b_s` is what an elementwise operator reaches."""
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


def attention_seconds(table: OperatorTable, rates: Rates, fitted: FusedCoefficients, tensor: bool) -> Array:
    """The kernels' seconds of fused attention."""
    cores = "tensor" if tensor else "cuda"
    share = np.where(
        table.phase == "backward", fitted.attention[f"{cores}_backward"], fitted.attention[f"{cores}_forward"]
    )
    if tensor:
        width = table.sizes[:, 3]
        share = share * 2 * width / (width + fitted.attention_columns) / (256 / (128 + fitted.attention_columns))
    seconds: Array = np.maximum(table.flops / (share * rates.flops_s), table.bytes / (0.7 * rates.bandwidth_b_s))
    return seconds


def recurrent_seconds(table: OperatorTable, rates: Rates, fitted: FusedCoefficients) -> Array:
    """The kernels' seconds of fused recurrent layers: steps follow one another."""
    steps, layers = table.sizes[:, 0], table.sizes[:, 3]
    work = np.maximum(table.flops / (fitted.recurrent_flops * rates.flops_s), table.bytes / (0.7 * rates.bandwidth_b_s))
    seconds: Array = np.maximum(work, steps * layers * fitted.recurrent_step_s)
    return seconds
