"""What selective checkpointing computes again and keeps: by hand, and on a transformer that was counted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ddlprof.model.operators import Operator, StepMemory, StepOperators
from ddlprof.recommender.compute.what_if import as_asked
from tests.unit.recommender.compute.decoder import BATCH, Decoder, counted_step, decoder

ROWS, WIDTH, HEADS = 64, 32, 4


def product(name: str, shape: tuple[int, ...], fixed: float, phase: str = "forward") -> Operator:
    moved = 4.0 * (shape[1] * shape[3] + shape[2] * shape[3] + shape[1] * shape[2]) * shape[0]
    grows = 1 if fixed else 0
    return Operator("product", phase, name, "fp32", shape, 0.0, moved, 1.0, 2.0, grows, fixed)


LINEAR = product("mm", (1, ROWS, WIDTH, WIDTH), 4.0 * WIDTH * WIDTH)
SCORES = product("bmm", (HEADS, ROWS, ROWS, WIDTH // HEADS), 0.0)
WEIGHTED = product("bmm", (HEADS, ROWS, WIDTH // HEADS, ROWS), 0.0)
SOFTMAX = Operator("softmax", "forward", "_softmax", "fp32", (HEADS * ROWS, ROWS), 0.0, 8.0, 1.0, 2.0, 0)
GELU = Operator("elementwise", "forward", "gelu", "fp32", (ROWS * WIDTH,), 0.0, 8.0, 1.0, 2.0, 0)
BACKWARD = product("mm", (1, ROWS, WIDTH, WIDTH), 4.0 * WIDTH * WIDTH, "backward")
KEPT = 2 * 4.0 * ROWS * WIDTH
"""The bytes of the results of both products with weights."""
MEMORY = StepMemory(
    parameter_bytes=1e6, trained_bytes=1e6, saved_bytes=16 * KEPT, layer_bytes=5 * KEPT, kept_bytes=6 * KEPT,
    temporary_bytes=0.0, points=((0.0, 16 * KEPT), (1e6, 2.0)),
)  # fmt: skip
STEP = StepOperators(8, "fp32", (LINEAR, SCORES, SOFTMAX, WEIGHTED, GELU, BACKWARD), optimizer="sgd", memory=MEMORY)


def again(step: StepOperators) -> list[tuple[str, tuple[int, ...]]]:
    return [(each.name, each.shape) for each in step.operators if each.phase == "backward"][1:]


def test_attention_and_cheap_operators_are_computed_again_and_products_with_weights_are_not() -> None:
    step = as_asked(STEP, batch=8, checkpointing="selective")
    assert again(step) == [(each.name, each.shape) for each in (SCORES, SOFTMAX, WEIGHTED, GELU)]
    assert len(again(as_asked(STEP, batch=8, checkpointing=True))) == 5
    assert step.checkpointing == "selective"


@pytest.mark.parametrize("checkpointing", [True, "selective"])
def test_asked_twice_or_taken_back_it_is_as_before(checkpointing: object) -> None:
    once = as_asked(STEP, batch=8, checkpointing=checkpointing)  # type: ignore[arg-type]
    assert as_asked(once, batch=8, checkpointing=checkpointing) == once  # type: ignore[arg-type]
    assert as_asked(once, batch=8, checkpointing=False).operators == STEP.operators


def test_from_full_to_selective_is_less_to_compute() -> None:
    full = as_asked(STEP, batch=8, checkpointing=True)
    step = as_asked(full, batch=8, checkpointing="selective")
    assert step.operators == as_asked(STEP, batch=8, checkpointing="selective").operators
    assert step.memory is not None
    assert step.memory.saved_bytes == 7 * KEPT


def _checkpointed_selectively(model: Decoder) -> Decoder:
    """The decoder as torch checkpoints it selectively, with the results of products kept."""
    products = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operator in products else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
    return model


def test_what_is_asked_for_is_what_torch_does() -> None:
    """FLOPs, saved bytes and the peak, of torch's own selective checkpointing."""
    asked = as_asked(counted_step(decoder()), batch=BATCH, checkpointing="selective")
    real = counted_step(_checkpointed_selectively(decoder()))
    of_asked, of_real = (
        sum(each.flops * each.count for each in step.operators if each.phase == "backward") for step in (asked, real)
    )
    assert of_asked == of_real
    assert asked.memory is not None
    assert real.memory is not None
    assert asked.memory.saved_bytes == pytest.approx(real.memory.saved_bytes, rel=0.02)
    peaks = [max(map(sum, memory.points)) for memory in (asked.memory, real.memory)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.02)


def test_a_forward_pass_alone_has_nothing_to_compute_again() -> None:
    inference = replace(STEP, training=False)
    assert as_asked(inference, batch=8, checkpointing="selective") == inference
