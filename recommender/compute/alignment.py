"""Products of 16-bit matrices whose sizes do not suit tensor cores.

Kernels load 16 bytes at a time: 8 elements of 16 bits. A matrix whose rows are no multiple of that, such as the weights
of a vocabulary of 50,257, gets kernels that load element by element. NVIDIA's Matrix Multiplication Background User's
Guide has the rule; nanoGPT (karpathy/nanoGPT, commit 77e7e04c) the figure: GPT-2 124M was "about 25% faster" on an A100
with 50,304 in place of 50,257. torch.compile pads such products itself (`shape_padding`, on by default since 2024).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddlprof.base.units import listed, percent
from ddlprof.recommender.compute.kernel_time import ALIGNED_ELEMENTS, Array, OperatorTable

SLOWER = 2.5
"""Such a product over one of a padded size: nanoGPT's step gets 25 % longer by products that take 17 % of the padded
one, as predicted. intel/torch-xpu-ops#1129 has 30 % for GPT-2 in fp16 on an A100."""
SLOWER_SD = 0.4
"""The standard deviation of its logarithm: a statement, as two figures are no fit."""
PAD = "pad "
"""How the sentence begins in the basis of an estimate that says what to pad."""
_PADDED = 64
_LEAST_GAIN = 0.03
"""Of a step: less is not worth a line."""


def unaligned(table: OperatorTable) -> NDArray[np.bool_]:
    """Which operators are single products of 16 bits with a size, other than the one that grows with the batch, that is
    no multiple of 8."""
    return np.asarray(table.unaligned_sizes.any(axis=1) & np.isin(table.dtype, ("bf16", "fp16")))


def padding(table: OperatorTable, slow_s: Array, step_s: float) -> tuple[str, ...]:
    """What padding would gain, for the basis of an estimate. `slow_s`: the seconds of each operator that is slower for
    its sizes, else 0. Empty where it is less than 3 %."""
    gain = float(slow_s.sum()) * (1 - 1 / SLOWER) / step_s
    if gain < _LEAST_GAIN:
        return ()
    sizes = sorted({int(size) for size in table.sizes[:, 1:4][table.unaligned_sizes & (slow_s > 0)[:, None]]})
    pairs = listed([f"{size:,} to {-(-size // _PADDED) * _PADDED:,}" for size in sizes], most=3)
    return (
        f"{PAD}{pairs}: products with sizes that are no multiples of {ALIGNED_ELEMENTS} are slow on tensor cores; the "
        f"step may be {percent(gain)} shorter without",
    )
