"""What DeepSpeed's ZeRO adds to a step in half precision: its handling of gradients, parameter by parameter, and its
update of copies in fp32.

Counted from `deepspeed/runtime/zero/stage_1_and_2.py`. In every micro-batch, hooks copy each gradient
into a bucket, divide it, and add it to those of earlier ones. The buckets are as large as asked for, however little is
trained, and the gradients of a micro-batch have a flat copy of their own. Before an update, norms are taken in fp64,
and gradients are flattened and cast to fp32, where a fused optimizer updates a copy of the parameters.

ZeRO-3 (`stage3.py`, `partitioned_param_coordinator.py`) has hooks around every module too, which gather its parameters
and give them back: in forward, in a block's forward that checkpointing does again, and in backward; frozen or trained,
on one GPU as on many. Its gradients are taken for those of ZeRO-2, and its update goes in parts.
"""

from __future__ import annotations

from dataclasses import replace

from ddlprof.model.operators import FUSED, Operator, StepOperators
from ddlprof.recommender.compute.optimizers import OptimizerKind, optimizer_named
from ddlprof.recommender.compute.precisions import BYTES, parameter_type, precision_named

HOOK_OPERATORS = 5.0
"""What Python and views take for a trained parameter in one micro-batch of ZeRO-2, in small operators of backward: set
by QLoRA of Qwen-1.8B on up to 1,024 tokens, an A100, and not by counting lines."""
GATHER_OPERATORS = 13.0
"""The same of ZeRO-3 for any parameter in each pass over it: set by full training of Qwen-1.8B on up to 2,048 tokens,
an A100."""
LIVE_ELEMENTS = 1e9
"""The parameters that ZeRO-3 holds gathered by default (`stage3_max_live_parameters`), beside the one in use, and those
that it updates at a time (`sub_group_size`), while the allocator may hold as much as an update of all."""
COPIES_OF_LARGEST = 4.0
"""How often the stream that gathers holds the largest weight: of the first pass for the embedding and for the logits,
whose pieces smaller weights have split since, its flat buffer, and the copy out of that."""
BUCKETS, BUCKET_ELEMENTS = 2.0, 5e8
"""The buckets of gradients, as they overlap, and their size by default (`reduce_bucket_size`)."""
UPDATE_BYTES = 6.0
"""The bytes of an element that an update holds for a moment: gradients in 16 bit, flat, and in fp32."""
_LAUNCHES, _COPIES = 3.0, 7.0
"""The kernels of a gradient in a micro-batch, and the copies of it that they read or write."""


def in_half_precision(step: StepOperators) -> bool:
    """Whether parameters are in 16 bit, so that there is a copy in fp32."""
    return BYTES[parameter_type(precision_named(step.precision))] == 2


def state_bytes(optimizer: OptimizerKind, elements: float) -> float:
    """The states of so many parameters, and the copy of these."""
    return optimizer.state_bytes(elements, 4) + 4 * elements


def gathered_bytes(element_bytes: float, whole: float, largest: float, world_size: int) -> tuple[float, float]:
    """The bytes that ZeRO-3 holds gathered at once, and those that torch's allocator keeps for it.

    `whole`, `largest`: the bytes of all parameters and of the largest one. Parameters are gathered on a stream of their
    own, whose freed memory no other stream gets (`c10/cuda/CUDACachingAllocator.cpp`). Of those that are gathered
    together there is a flat buffer beside the copies (`AllGatherCoalescedHandle`), and what is released waits for the
    computation (`record_stream`). That this keeps twice what is live and the largest one, or the largest one four
    times, is what it comes to where both are followed allocation by allocation (`scripts/fit/gathers.py`); no published
    memory has set it. On one GPU, where DeepSpeed gathers without a copy, it is what Qwen-1.8B held.
    """
    live = min(LIVE_ELEMENTS * element_bytes, whole)
    least = min(live + largest, whole)
    kept = max(2 * live + largest, COPIES_OF_LARGEST * largest)
    return least, kept if world_size > 1 else least


def with_deepspeed(step: StepOperators, trained: tuple[float, float], stage: int, frozen: float) -> StepOperators:
    """The step under a stage of DeepSpeed's ZeRO; `trained`: the elements and the number of the trained parameters;
    `frozen`: the number of the others. As it is where parameters are in fp32, or nothing is updated."""
    updates = [operator for operator in step.operators if operator.kind == "optimizer"]
    if not updates or not in_half_precision(step):
        return step
    elements, tensors = trained
    dtype = parameter_type(precision_named(step.precision))
    gradients = Operator(
        kind="copy", phase="backward", name="deepspeed_gradients", dtype=dtype, shape=(round(elements),), flops=0.0,
        bytes=_COPIES * 2 * elements, launches=_LAUNCHES * tensors, count=1.0, fixed_bytes=_COPIES * 2 * elements,
    )  # fmt: skip
    # The host takes a third of an operator for what launches nothing.
    hooks = [replace(gradients, name="deepspeed_hooks", bytes=0.0, fixed_bytes=0.0, launches=0.0,
                     count=3 * HOOK_OPERATORS * tensors)]  # fmt: skip
    if stage == 3:
        forward = replace(hooks[0], phase="forward", name="deepspeed_gathers",
                          count=3 * GATHER_OPERATORS * (tensors + frozen))  # fmt: skip
        hooks = [forward, *(1 + bool(step.checkpointing)) * [replace(forward, phase="backward")]]
    fused = replace(optimizer_named(step.optimizer or "adamw"), implementation=FUSED)
    around = (2 + 8 + 8) + (2 + 2) + (2 + 4) + (4 + 2)  # norms; flat copy; cast to fp32; parameters from fp32
    update = tuple(
        replace(each, bytes=each.bytes + around * elements, fixed_bytes=each.bytes + around * elements)
        for each in fused.operators(elements, tensors, "fp32", 4)
    )
    kept = tuple(operator for operator in step.operators if operator.kind != "optimizer")
    return replace(step, operators=(*kept, gradients, *hooks, *update))
