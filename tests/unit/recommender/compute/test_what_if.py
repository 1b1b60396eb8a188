"""A step at another batch or precision, with another optimizer, checkpointed or compiled: by hand and by law."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from ddlprof.model.operators import OPTIMIZER_UPDATES, Operator, StepMemory, StepOperators
from ddlprof.recommender import PredictionError
from ddlprof.recommender.compute.precisions import PRECISIONS
from ddlprof.recommender.compute.what_if import as_asked

ROWS, WIDTH, CLASSES = 64, 32, 1000
WEIGHTS = WIDTH * WIDTH + WIDTH
ELEMENTS, TENSORS = 2_000_000, 148


def op(
    kind: str,
    name: str,
    shape: tuple[int, ...],
    elements: float,
    fixed: float = 0.0,
    phase: str = "forward",
    **more: object,
) -> Operator:
    """An operator in fp32 that moves `elements`, `fixed` of them whatever the batch."""
    defaults: dict[str, Any] = {
        "dtype": "fp32", "flops": 0.0, "launches": 1.0, "count": 12.0, "grows": 1 if kind == "product" else 0,
    }  # fmt: skip
    return Operator(
        kind=kind,
        phase=phase,
        name=name,
        shape=shape,
        bytes=4 * elements,
        fixed_bytes=4 * fixed,
        **{**defaults, **more},
    )


LINEAR = op(
    "product", "addmm", (1, ROWS, WIDTH, WIDTH), 2 * ROWS * WIDTH + WEIGHTS, WEIGHTS, flops=2.0 * ROWS * WIDTH * WIDTH
)
NORM = op("normalization", "native_layer_norm", (ROWS, WIDTH), 2 * ROWS * WIDTH)
GELU = op("elementwise", "gelu", (ROWS * WIDTH,), 2 * ROWS * WIDTH, fused_bytes=0.0, fused_launches=0.0)
SUM = op("elementwise", "add", (ROWS * WIDTH,), 3 * ROWS * WIDTH)
LOGITS = op(
    "product", "mm", (1, ROWS, CLASSES, WIDTH), ROWS * (WIDTH + CLASSES) + CLASSES * WIDTH, CLASSES * WIDTH, count=1.0
)
LOSS = op("softmax", "_log_softmax", (ROWS, CLASSES), 2 * ROWS * CLASSES, count=1.0)
LOOKUP = op("embedding", "embedding", (ROWS, WIDTH), 2 * ROWS * WIDTH, count=1.0)
UPDATE = op(
    "optimizer", "_fused_adamw_", (ELEMENTS, TENSORS), 7 * ELEMENTS, 7 * ELEMENTS, "optimizer", grows=None, count=1.0
)
FORWARD = (LOOKUP, LINEAR, NORM, GELU, SUM, LOGITS, LOSS)
BACKWARD = (
    op("product", "mm", (1, ROWS, WIDTH, WIDTH), 2 * ROWS * WIDTH + WIDTH * WIDTH, WIDTH * WIDTH, "backward"),
    op("reduction", "sum", (ROWS * WIDTH, WIDTH), ROWS * WIDTH, phase="backward"),
)
MEMORY = StepMemory(
    parameter_bytes=4.0 * ELEMENTS, trained_bytes=4.0 * ELEMENTS, saved_bytes=1e8, saved_fixed_bytes=1e6,
    temporary_bytes=2e6, layer_bytes=5e6, kept_bytes=1e7, input_bytes=1e5,
)  # fmt: skip
STEP = StepOperators(8, "fp32", (*FORWARD, *BACKWARD, UPDATE), optimizer="adamw", memory=MEMORY)


def moved(step: StepOperators, phase: str | None = None, kind: str | None = None) -> float:
    chosen = [o for o in step.operators if phase in (None, o.phase) and kind in (None, o.kind)]
    return sum(o.bytes * o.count for o in chosen)


def flops(step: StepOperators) -> float:
    return sum(o.flops * o.count for o in step.operators)


def named(step: StepOperators, name: str) -> Operator:
    return next(operator for operator in step.operators if operator.name == name)


def test_nothing_asked_is_the_same_step() -> None:
    assert as_asked(STEP, batch=8) == STEP
    same = as_asked(STEP, batch=8, precision="fp32", optimizer="AdamW", checkpointing=False, compiled=False)
    assert same == STEP


def test_bytes_and_flops_are_linear_in_the_batch() -> None:
    steps = [as_asked(STEP, batch=batch) for batch in (8, 16, 24)]
    for of in (moved, flops):
        first, second, third = (of(step) for step in steps)
        assert third - second == pytest.approx(second - first)
        assert second > first
    assert as_asked(as_asked(STEP, batch=24), batch=8) == STEP


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_pure_half_precision_halves_everything_and_comes_back(half: str) -> None:
    step = as_asked(STEP, batch=8, precision=half)
    assert moved(step) == pytest.approx(moved(STEP) / 2)
    assert {operator.dtype for operator in step.operators} == {half}
    assert step.memory is not None
    assert step.memory.trained_bytes == 2.0 * ELEMENTS
    assert as_asked(step, batch=8, precision="fp32") == STEP


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_keeps_the_flops_and_leads_back_to_fp32(precision: str) -> None:
    step = as_asked(STEP, batch=8, precision=precision)
    assert (step.precision, flops(step)) == (precision, flops(STEP))
    back = as_asked(step, batch=8, precision="fp32")
    assert [o.name for o in back.operators] == [o.name for o in STEP.operators]
    for operator, first in zip(back.operators, STEP.operators, strict=True):
        assert (operator.dtype, operator.shape) == ("fp32", first.shape)
        assert operator.bytes == pytest.approx(first.bytes)
        assert operator.fixed_bytes == pytest.approx(first.fixed_bytes)
    assert back.memory is not None
    assert back.memory.saved_bytes == pytest.approx(MEMORY.saved_bytes)


def test_autocast_computes_products_in_half_and_leaves_its_list_and_the_update() -> None:
    step = as_asked(STEP, batch=8, precision="amp-bf16")
    types = {operator.name: operator.dtype for operator in step.operators if operator.name != "_to_copy"}
    halves = {name for name, dtype in types.items() if dtype == "bf16"}
    assert halves == {"addmm", "mm", "gelu", "sum"}
    # Sums of residual branches stay in fp32 beside layer norms, and go to half beside batch norm.
    batch_norm = replace(STEP, operators=(replace(NORM, name="native_batch_norm"), SUM, LINEAR))
    assert named(as_asked(batch_norm, batch=8, precision="amp-bf16"), "add").dtype == "bf16"
    assert named(as_asked(batch_norm, batch=8, precision="amp-bf16"), "native_batch_norm").dtype == "bf16"


def test_autocast_casts_weights_once_there_and_their_gradients_back() -> None:
    step = as_asked(STEP, batch=8, precision="amp-fp16")
    casts = [o for o in step.operators if o.name == "_to_copy" and o.grows is None]
    by_phase: dict[str, float] = defaultdict(float)
    for cast in casts:
        by_phase[cast.phase] += cast.bytes * cast.count
    weights = 12 * WEIGHTS + CLASSES * WIDTH
    assert by_phase["forward"] == by_phase["backward"] == pytest.approx(6 * weights)
    assert step.memory is not None
    assert step.memory.saved_cast_bytes == pytest.approx(2 * weights)
    inference = as_asked(replace(STEP, training=False, operators=FORWARD), batch=8, precision="amp-fp16")
    assert {o.phase for o in inference.operators} == {"forward"}


def test_only_fp16_under_autocast_has_a_gradient_scaler() -> None:
    names = {
        precision: {o.name for o in as_asked(STEP, batch=8, precision=precision).operators} for precision in PRECISIONS
    }
    having = {precision for precision, found in names.items() if any("unscale" in name for name in found)}
    assert having == {"amp-fp16"}
    scaled = as_asked(STEP, batch=8, precision="amp-fp16")
    assert not any("unscale" in o.name for o in as_asked(scaled, batch=8, precision="amp-bf16").operators)


def test_tf32_differs_in_name_only() -> None:
    assert as_asked(STEP, batch=8, precision="tf32") == replace(STEP, precision="tf32")


def test_fp8_products_read_one_byte_and_write_two() -> None:
    linear = named(as_asked(STEP, batch=8, precision="fp8"), "addmm")
    assert linear.dtype == "fp8"
    read, written = ROWS * WIDTH + WIDTH * WIDTH, ROWS * WIDTH
    assert linear.bytes == pytest.approx(LINEAR.bytes * (read + 2 * written) / (4 * (read + written)))


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_fp8_leaves_parameters_in_half_precision_as_they_are(half: str) -> None:
    before = as_asked(STEP, batch=8, precision=half)
    after = as_asked(before, batch=8, precision="fp8")
    assert named(after, "addmm").dtype == "fp8"
    assert named(after, "_fused_adamw_") == named(before, "_fused_adamw_")
    assert after.memory == before.memory
    read, written = ROWS * WIDTH + WIDTH * WIDTH, ROWS * WIDTH
    assert named(after, "addmm").bytes == pytest.approx(
        named(before, "addmm").bytes * (read + 2 * written) / (2 * (read + written))
    )
    assert as_asked(after, batch=8, precision="fp8") == after
    assert moved(as_asked(after, batch=8, precision="fp32")) == pytest.approx(moved(STEP))
    assert moved(as_asked(after, batch=8, precision=half)) == pytest.approx(moved(before))


@pytest.mark.parametrize("name", OPTIMIZER_UPDATES)
def test_every_optimizer_updates_all_that_is_trained(name: str) -> None:
    step = as_asked(STEP, batch=8, optimizer=name)
    updates = [operator for operator in step.operators if operator.phase == "optimizer"]
    assert (step.optimizer, moved(step, "forward")) == (name, moved(STEP, "forward"))
    if name == "none":
        assert updates == []
        return
    (update,) = (operator for operator in updates if operator.kind == "optimizer")
    assert update.shape == (ELEMENTS, TENSORS)
    assert update.bytes >= 3 * 4 * ELEMENTS if "8bit" not in name else update.bytes > 0
    assert as_asked(step, batch=8, optimizer="adamw-fused").operators[-1].bytes == pytest.approx(UPDATE.bytes)


def test_muon_multiplies_each_matrix_in_bf16_whatever_the_precision() -> None:
    """Five iterations of X X', its square, and that by X: 2 (2 n m m + m m m) operations for n >= m."""
    for precision in ("fp32", "bf16", "amp-fp16"):
        step = as_asked(STEP, batch=8, precision=precision, optimizer="muon")
        products = [each for each in step.operators if (each.phase, each.kind) == ("optimizer", "product")]
        again = as_asked(step, batch=16, precision="bf16")
        assert [each for each in again.operators if (each.phase, each.kind) == ("optimizer", "product")] == products
        assert {each.dtype for each in products} == {"bf16"}
        flops = sum(each.flops * each.count for each in products)
        assert flops == pytest.approx(12 * 5 * 6 * WIDTH**3)


def test_a_fused_update_moves_and_launches_less_than_one_by_operations() -> None:
    updates = [
        as_asked(STEP, batch=8, optimizer=f"sgd-momentum-{how}").operators[-1] for how in ("fused", "foreach", "single")
    ]
    fused, foreach, single = updates
    assert fused.bytes < foreach.bytes == single.bytes
    assert fused.launches < foreach.launches < single.launches


def test_an_update_has_the_type_of_the_parameters() -> None:
    pure = as_asked(STEP, batch=8, precision="bf16", optimizer="sgd")
    assert (pure.operators[-1].dtype, pure.operators[-1].bytes) == ("bf16", 3 * 2 * ELEMENTS)
    mixed = as_asked(STEP, batch=8, precision="amp-bf16", optimizer="sgd")
    assert (mixed.operators[-1].dtype, mixed.operators[-1].bytes) == ("fp32", 3 * 4 * ELEMENTS)


def test_without_an_update_the_trained_bytes_tell() -> None:
    bare = replace(STEP, optimizer="none", operators=(*FORWARD, *BACKWARD))
    assert as_asked(bare, batch=8, optimizer="sgd").operators[-1].shape[0] == ELEMENTS
    with pytest.raises(PredictionError, match="how many parameters are trained"):
        as_asked(replace(bare, memory=None), batch=8, optimizer="sgd")


def test_checkpointing_computes_blocks_again_and_can_be_taken_back() -> None:
    step = as_asked(STEP, batch=8, checkpointing=True)
    again = [o.name for o in step.operators if o.phase == "backward"][len(BACKWARD) :]
    assert again == ["addmm", "native_layer_norm", "gelu", "add"]  # not the lookup, the logits and the loss
    assert step.checkpointing
    assert step.memory is not None
    assert step.memory.saved_bytes == MEMORY.kept_bytes
    back = as_asked(step, batch=8, checkpointing=False)
    assert back.operators == STEP.operators
    assert back.memory is not None
    assert back.memory.saved_bytes is None  # what would be saved was not counted


def test_compiled_takes_what_was_counted_and_else_a_share() -> None:
    step = as_asked(STEP, batch=8, compiled=True)
    assert step.compiled
    assert (named(step, "gelu").bytes, named(step, "gelu").launches) == (0.0, 0.0)
    assert 0 < named(step, "add").bytes < SUM.bytes
    assert named(step, "addmm").bytes == LINEAR.bytes
    assert named(step, "_fused_adamw_") == UPDATE
    uncounted = replace(STEP, operators=(SUM, NORM, LINEAR))
    back = as_asked(as_asked(uncounted, batch=8, compiled=True), batch=8, compiled=False)
    assert moved(back) == pytest.approx(moved(uncounted))


def test_compiled_casts_of_activations_cost_nothing() -> None:
    mixed = as_asked(STEP, batch=8, precision="amp-bf16", compiled=True)
    casts = [o for o in mixed.operators if o.name == "_to_copy"]
    assert sum(o.bytes for o in casts if o.grows is not None) == 0
    assert sum(o.bytes for o in casts if o.grows is None) > 0


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"precision": "fp31"}, "precision 'fp31' is not known; one of: fp32, tf32, bf16"),
        ({"optimizer": "adamx"}, "optimizer 'adamx' is not known; one of: none, sgd"),
        ({"optimizer": "nadam-fused"}, "nadam has no fused update"),
        ({"batch": 0}, "give at least 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(question: dict[str, object], words: str) -> None:
    with pytest.raises(PredictionError, match=words) as raised:
        as_asked(STEP, **{"batch": 8, **question})  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_a_forward_pass_alone_has_no_update_to_ask_for() -> None:
    inference = replace(STEP, training=False, operators=FORWARD, optimizer="none")
    assert as_asked(inference, batch=8, checkpointing=True) == inference
    with pytest.raises(PredictionError, match="forward pass alone"):
        as_asked(inference, batch=8, optimizer="sgd")
