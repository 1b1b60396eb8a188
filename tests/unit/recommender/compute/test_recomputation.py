"""What selective checkpointing computes again and keeps: by hand, and on a transformer that was counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.model.operators import Operator, StepMemory, StepOperators
from recommender.compute.what_if import as_asked

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


def test_selective_keeps_the_results_of_products_beside_what_full_keeps() -> None:
    full = as_asked(STEP, batch=8, checkpointing=True).memory
    selective = as_asked(STEP, batch=8, checkpointing="selective").memory
    assert full is not None
    assert selective is not None
    assert selective.saved_bytes == 7 * KEPT
    assert full.saved_bytes == 6 * KEPT
    # A tenth of what is saved in blocks is kept, so the largest block makes nine tenths of itself again.
    assert selective.layer_bytes == pytest.approx(0.9 * 5 * KEPT)
    assert max(grown for _, grown in selective.points) == pytest.approx(7 * KEPT + 4.5 * KEPT)


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


def test_a_forward_pass_alone_has_nothing_to_compute_again() -> None:
    inference = replace(STEP, training=False)
    assert as_asked(inference, batch=8, checkpointing="selective") == inference
