"""Seconds of elementwise kernels that compute the place of each element, which the SMs bind and not memory.

A kernel that loads several elements of contiguous operands at once waits for memory. One whose operands are
broadcast, permuted or of several types divides the index of each element by the sizes, and loads one element after
another. That takes as many clocks of an SM on any GPU, however wide its memory is: GPUs with much bandwidth for each
clock of an SM (H200, H100, A100) are bound by it in 16 bits, those with graphics memory are not.
"""

from __future__ import annotations

import numpy as np

from ddlprof.model.operators import BY_PLACE, CAST
from ddlprof.recommender.compute.kernel_time import Array, OperatorTable
from ddlprof.recommender.compute.tensor_time import TensorCores

_ELEMENTS_A_CLOCK = 1.3
"""Elements that such a kernel computes in a clock of each SM: the median of eight operators of the Qwen trace of
TraceLens (AMD-AGI, MIT) on an H100, 1.1 to 1.6 at the clock of the data sheet's peak."""


def by_place_seconds(table: OperatorTable, seconds: Array, cores: TensorCores) -> Array:
    """The seconds of each call, no shorter than such kernels need. `seconds`: what memory needs."""
    casts = np.isin(table.names, CAST) & (table.dtype == "fp32")
    placed = np.char.endswith(np.array(table.names, dtype=np.str_), BY_PLACE)
    chosen = (casts | placed) & (table.launches > 0)
    needed = table.sizes[:, 0] / (_ELEMENTS_A_CLOCK * cores.sms * cores.clock_hz)
    result: Array = np.where(chosen, np.maximum(seconds, needed), seconds)
    return result
