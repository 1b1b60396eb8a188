"""What products of 16-bit matrices cost whose sizes do not suit tensor cores, such as a vocabulary of 50,257."""

from __future__ import annotations

from ddlprof.base.units import percent
from ddlprof.model.operators import ALIGNED_ELEMENTS, UNALIGNED_SLOWER, padded
from ddlprof.recommender.compute.kernel_time import Array, OperatorTable

SLOWER_SD = 0.4
"""The standard deviation of the logarithm of `UNALIGNED_SLOWER`: a statement, as two figures are no fit."""
PAD = "pad "
"""How the sentence begins in the basis of an estimate that says what to pad."""
_LEAST_GAIN = 0.03
"""Of a step: less is not worth a line."""


def padding(table: OperatorTable, slow_s: Array, step_s: float) -> tuple[str, ...]:
    """What padding would gain, for the basis of an estimate. `slow_s`: the seconds of each operator that is slower for
    its sizes, else 0. Empty where it is less than 3 %."""
    gain = float(slow_s.sum()) * (1 - 1 / UNALIGNED_SLOWER) / step_s
    if gain < _LEAST_GAIN:
        return ()
    sizes = [size for row, seconds in zip(table.unaligned, slow_s, strict=True) if seconds for size in row]
    return (
        f"{PAD}{padded(sizes)}: products with sizes that are no multiples of {ALIGNED_ELEMENTS} are slow on tensor "
        f"cores; the step may be {percent(gain)} shorter without",
    )
