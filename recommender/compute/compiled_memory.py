"""What torch.compile leaves of the memory of a step that was counted without it.

What backward computes again element by element is not saved (`trace_fusion`), and the copies of logits in fp32 are not
there.

Run operator by operator, a cross entropy has its result in fp32 alive, the gradient of that and the gradient of the
logits, all in fp32 and as large as the logits, at the beginning of backward. torch.compile joins the cast of the
logits, the softmax and the loss into kernels that keep one number a row, and saves the logits as they came out of the
product. At the peak, the gradient of the logits and the zeros that stand for the gradient of the returned logits are
left of the three, in the type of the logits; what is returned itself is counted with the step. Where the model does not
return its logits, less is left: their gradient takes their place (`scripts/bench/memory_compiled.py` of commit
6f8c63c5 measured both).
"""

from __future__ import annotations

import math
from dataclasses import replace

from ddlprof.model.operators import StepMemory, StepOperators, highest
from ddlprof.recommender.compute.precisions import BYTES

_COPIES = 3
"""The result of the softmax, its gradient and that of the logits."""
_LEFT = 2
"""The gradient of the logits, and zeros."""
_LEAST = 2
"""Bytes of a logit and of its gradient at least: none come out of a product in fp8."""


def compiled_memory(step: StepOperators, memory: StepMemory, factor: float) -> StepMemory:
    """`memory`, that of a batch `factor` times as large as that of `step`, as torch.compile leaves it."""
    return _without_joined(_without_copies_of_logits(step, memory, factor))


def _without_joined(memory: StepMemory) -> StepMemory:
    joined, saved = memory.joined_bytes, memory.saved_bytes
    if not joined or not saved:
        return memory
    points = highest((fixed, grown - joined * min(grown / saved, 1.0)) for fixed, grown in memory.points)
    return replace(memory, saved_bytes=saved - joined, points=points)


def _without_copies_of_logits(step: StepOperators, memory: StepMemory, factor: float) -> StepMemory:
    copies = left = saved = 0.0
    for operator in step.operators:
        if operator.phase != "forward" or operator.kind != "softmax" or "log_softmax" not in operator.name:
            continue
        elements = math.prod(operator.shape) * (factor if operator.grows is not None else 1.0)
        size = BYTES.get(operator.dtype, 4)
        saved += size * elements * operator.count
        copies += size * elements * (operator.count + _COPIES - 1)  # of a loss in parts, backward has one at a time
        left += _LEFT * _bytes_of_a_logit(step, operator.shape[-1]) * elements
    if copies <= left or not memory.points or memory.saved_bytes is None:
        return memory
    # Once the logits are gone, all else that was saved is still there.
    rest = max(memory.saved_bytes - memory.saved_fixed_bytes - saved, 0.0)
    points = highest((fixed, _without(grown, copies, left, rest)) for fixed, grown in memory.points)
    return replace(memory, points=points)


def _bytes_of_a_logit(step: StepOperators, classes: int) -> int:
    made = (o for o in step.operators if o.phase == "forward" and o.kind == "product" and o.shape[2] == classes)
    return max(_LEAST, max((BYTES.get(operator.dtype, 4) for operator in made), default=_LEAST))


def _without(grown: float, copies: float, left: float, rest: float) -> float:
    """What grows with the batch at a moment; later moments than those of the loss stay as they are."""
    return min(grown, max(grown - copies + left, rest + left)) if grown > rest else grown
