"""Memory from the tensors of a step: by hand, and what must hold of it whatever the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.model.operators import Operator, StepMemory, StepOperators
from ddlprof.recommender import Measurement, PredictionError, Workload
from ddlprof.recommender.compute.memory import GIB, JobMemory, MemoryNeed
from ddlprof.recommender.compute.precisions import PRECISIONS
from ddlprof.recommender.compute.step_parts import Changes
from ddlprof.recommender.strategy import STRATEGIES

LINEAR = Operator("product", "forward", "mm", "fp32", (1, 64, 8, 8), 0.0, 1e6, 1.0, 1.0, grows=1, fixed_bytes=1e5)
MEMORY = StepMemory(
    parameter_bytes=2 * GIB, trained_bytes=1.5 * GIB, saved_bytes=4.0 * GIB, temporary_bytes=0.0,
    layer_bytes=0.5 * GIB, kept_bytes=1.0 * GIB, input_bytes=0.125 * GIB,
    points=((0.0, 4.0 * GIB), (1.0 * GIB, 3.5 * GIB), (1.5 * GIB, 0.5 * GIB)),
    largest_tensor_bytes=0.25 * GIB, largest_block_bytes=0.25 * GIB,
)  # fmt: skip
STEP = StepOperators(8, "fp32", (LINEAR,), optimizer="adamw", memory=MEMORY)


def job(step: StepOperators | None = STEP, peak_gib: float | None = None, **measured: object) -> Workload:
    run = Measurement(**{"gpu_model": "T4", "placement": (1,), "batch_per_gpu": 8, "step_s": 0.5, **measured})  # type: ignore[arg-type]
    peak = None if peak_gib is None else int(peak_gib * GIB)
    return Workload("job", step=step, measurements=[run], peak_memory_bytes=peak)


def need(
    workload: Workload | None = None,
    batch: int = 8,
    world: int = 1,
    accum: int = 1,
    precision: str | None = None,
    strategy: str | None = None,
    **changes: Any,
) -> MemoryNeed:
    memory = JobMemory(workload or job(), precision=precision, strategy=strategy, changes=Changes(**changes))
    found = memory.need(batch, world, accum)
    assert found is not None
    return found


def gib(need: MemoryNeed) -> dict[str, float]:
    return {name: part / GIB for name, part in need.parts.items() if part and name not in ("context", "workspace")}


def test_a_small_batch_peaks_in_the_update() -> None:
    # Adam by operations makes a copy of all that is trained.
    assert gib(need(batch=1)) == {"parameters": 2, "gradients": 1.5, "optimizer": 3, "update": 1.5, "input": 1 / 64}
    assert "update" not in gib(need(batch=1, optimizer="adamw-fused"))
    assert gib(need(batch=1, optimizer="adamw-single"))["update"] == 0.25


@pytest.mark.parametrize(
    ("optimizer", "copies"), [("sgd", 0), ("sgd-momentum", 1), ("adam", 2), ("amsgrad", 3), ("adamw8bit", 0.5)]
)
def test_an_optimizer_keeps_copies_of_what_is_trained(optimizer: str, copies: float) -> None:
    assert need(optimizer=optimizer).optimizer == pytest.approx(copies * 1.5 * GIB)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-bf16"])
def test_fp8_keeps_the_type_of_the_parameters_and_says_so(precision: str) -> None:
    counted = need(precision=precision)
    step = replace(STEP, precision=precision)
    asked, before = need(job(step), precision="fp8"), need(job(step), precision="amp-bf16")
    if precision == "bf16":
        before = need(job(step))
    assert asked.bytes == pytest.approx(before.bytes, rel=1e-4)
    kept = "bf16" if precision == "bf16" else "fp32"
    assert f"parameters, gradients and states stay in {kept}" in asked.basis
    assert "stay in" not in counted.basis


def _with_loss(dtype: str, compiled: bool = True) -> StepOperators:
    """The step with a loss over 2**26 logits that come out of a product in `dtype`."""
    rows, classes = 2**12, 2**14
    logits = replace(LINEAR, dtype=dtype, shape=(1, rows, classes, 8))
    loss = Operator("softmax", "forward", "_log_softmax", "fp32", (rows, classes), 0.0, 1e6, 1.0, 1.0, grows=0)
    moments = ((0.0, 4.0 * GIB), (1.0 * GIB, 2.0 * GIB), (1.5 * GIB, 0.5 * GIB))
    memory = replace(MEMORY, saved_bytes=2.5 * GIB, points=moments)
    return replace(STEP, operators=(logits, loss), memory=memory, compiled=compiled)


@pytest.mark.parametrize(("dtype", "copies"), [("bf16", 8), ("fp32", 4)])
def test_torch_compile_joins_the_copies_of_the_logits_in_fp32(dtype: str, copies: int) -> None:
    # 12 bytes a logit: the result of the softmax, its gradient, that of the logits. Left are a gradient and zeros.
    whole, joined = (gib(need(job(_with_loss(dtype, compiled)))) for compiled in (False, True))
    assert whole["activations"] == 4.0
    assert joined["activations"] == 4.0 - copies * 2**26 / GIB
    asked = need(job(_with_loss(dtype, compiled=False)), compiled=True)
    assert gib(asked)["activations"] == joined["activations"]
    assert "without those that torch.compile joins" in asked.basis


def test_torch_compile_does_not_save_what_backward_computes_again() -> None:
    def activations(compiled: bool) -> float:
        step = replace(STEP, compiled=compiled, memory=replace(MEMORY, joined_bytes=0.25 * GIB))
        return gib(need(job(step)))["activations"]

    # At the peak, seven eighths of what was saved are still there.
    assert activations(False) - activations(True) == pytest.approx(7 / 8 * 0.25)
    eager, without = (need(job(replace(STEP, memory=replace(MEMORY, joined_bytes=size)))) for size in (GIB / 4, 0.0))
    assert eager.low == without.low


def test_of_a_loss_in_parts_backward_has_one_part_at_a_time() -> None:
    # Eight parts: 8 + 2 of the 8 x 3 copies of a part, and a gradient and zeros of one.
    step = _with_loss("bf16")
    logits, loss = step.operators
    parts = replace(step, operators=(logits, replace(loss, shape=(2**9, 2**14), count=8.0)))
    assert gib(need(job(parts)))["activations"] == 4.0 - (10 * 4 - 4) * 2**23 / GIB


def test_copies_of_logits_grow_with_the_batch_and_leave_later_moments_alone() -> None:
    twice = gib(need(job(_with_loss("bf16")), batch=16))
    assert twice["activations"] == 2 * (4.0 - 0.5)
    few = replace(_with_loss("bf16"), memory=replace(MEMORY, saved_bytes=3.9 * GIB, points=((0.0, 4.0 * GIB),)))
    assert gib(need(job(few)))["activations"] == 3.9 - 0.25 + 0.25  # all else that is saved, and what is left


def test_checkpointing_leaves_what_blocks_begin_with_and_one_block() -> None:
    found = gib(need(optimizer="sgd", checkpointing=True))
    # At the end of backward: all gradients, an eighth of what is kept, and the last block.
    assert found == {"parameters": 2, "gradients": 1, "activations": pytest.approx(0.5 + 3.5 / 4), "input": 0.125}


def test_frozen_parameters_have_no_gradients_and_states() -> None:
    frozen = replace(STEP, memory=replace(MEMORY, trained_bytes=0.0, points=((0.0, GIB),)))
    assert gib(need(job(frozen))) == {"parameters": 2, "activations": 1, "input": 0.125}


def test_a_forward_pass_alone_keeps_nothing() -> None:
    alone = replace(STEP, training=False, memory=replace(MEMORY, points=((0.0, GIB),)))
    assert gib(need(job(alone))) == {"parameters": 2, "activations": 1, "input": 0.125}


def test_a_measured_peak_corrects_activations_and_what_is_left_is_of_fixed_size() -> None:
    # Without the context the need is 9.6875 GiB: 9.625 and the workspaces of 1/16.
    same = need(job(peak_gib=9.6875))
    assert same.bytes == pytest.approx(need().bytes)
    more = need(job(peak_gib=9.6875 + 1.75))
    assert (more.activations / GIB, more.other / GIB) == pytest.approx((5.25, 0))
    much = need(job(peak_gib=9.6875 + 10))
    assert ((much.activations + much.gradients) / GIB, much.other / GIB) == pytest.approx((8, 6.5))
    assert need(job(peak_gib=9.6875 + 1.75), batch=16).activations > 2 * more.activations * 0.9
    assert (more.high - more.low) / more.bytes < (need().high - need().low) / need().bytes


def test_without_counted_moments_the_range_is_the_same_and_without_activations_wide() -> None:
    rough = need(job(replace(STEP, memory=replace(MEMORY, points=()))))
    assert need().bytes < rough.bytes
    blind = need(job(replace(STEP, memory=replace(MEMORY, points=(), saved_bytes=None))))
    assert blind.high / blind.bytes > rough.high / rough.bytes
    assert "activations assumed" in blind.basis


def test_an_optimizer_nobody_knows_is_taken_for_one_that_keeps_much() -> None:
    found = need(job(replace(STEP, optimizer="Sophia")))
    assert found.optimizer == need().optimizer
    assert "taken for adamw" in found.basis
    with pytest.raises(PredictionError, match="optimizer 'Sophia' is not known"):
        need(optimizer="Sophia")


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    found = JobMemory(job())
    batch = found.largest_batch(24.0, 1)
    least, more = found.needed_gib(batch, 1), found.needed_gib(batch + 1, 1)
    assert least is not None
    assert more is not None
    assert least <= 24.0 < more
    assert found.largest_batch(4.0, 1) == 0
    assert JobMemory(Workload("unknown")).largest_batch(24.0, 1) == 0


def test_without_operators_the_peak_of_the_run_is_scaled() -> None:
    bare = replace(job(None, peak_gib=10.0), gradient_bytes=1.0 * GIB)
    assert JobMemory(bare, precision="fp32").needed_gib(16, 1) == pytest.approx(16.8)
    assert JobMemory(job(None), precision="fp32").needed_gib(16, 1) is None


@given(
    batch=st.integers(1, 500),
    world=st.integers(1, 64),
    accum=st.integers(1, 4),
    precision=st.sampled_from(PRECISIONS),
    strategy=st.sampled_from(sorted(STRATEGIES)),
    checkpointing=st.booleans(),
    peak=st.sampled_from([None, 8.0, 12.0]),
)
def test_laws(
    batch: int, world: int, accum: int, precision: str, strategy: str, checkpointing: bool, peak: float | None
) -> None:
    changes = Changes("adam", checkpointing)
    memory = JobMemory(job(peak_gib=peak), precision=precision, strategy=strategy, changes=changes)
    found = memory.need(batch, world, accum)
    larger, wider, longer = memory.need(batch + 1, world, accum), memory.need(batch, 2 * world, accum), None
    longer = memory.need(batch, world, accum + 1)
    assert found
    assert larger
    assert wider
    assert longer
    assert found.low <= found.bytes <= found.high
    assert found.bytes <= larger.bytes
    assert found.bytes <= longer.bytes
    if STRATEGIES[strategy].sharded and world > 1:
        assert wider.bytes <= found.bytes
