"""What ranks exchange for an update: all gradients, or those of adapters, and the weights that FSDP gathers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.model.operators import Layer, Operator, StepMemory, StepOperators
from ddlprof.recommender import PredictionError, Workload
from ddlprof.recommender.compute.packing import FORMATS
from ddlprof.recommender.compute.step_parts import Changes
from ddlprof.recommender.exchanged import Exchanged, exchanged_by
from ddlprof.recommender.strategy import STRATEGIES

WIDTH, LAYERS, RANK = 1024, 10, 8
ELEMENTS = float(LAYERS * WIDTH * WIDTH)
LINEAR = Operator(
    "product", "forward", "mm", "bf16", (1, 64, WIDTH, WIDTH), 0.0, 4e6, 1.0, LAYERS, 1, 2.0 * WIDTH * WIDTH
)  # fmt: skip
STEP = StepOperators(
    8, "bf16", (LINEAR,), optimizer="sgd",
    memory=StepMemory(parameter_bytes=2 * ELEMENTS, trained_bytes=2 * ELEMENTS),
)  # fmt: skip
JOB = Workload("net", parameter_tensors=LAYERS, gradient_bytes=2 * ELEMENTS, step=STEP)
SHARE = 2 * RANK / WIDTH
"""The elements of adapters for each weight."""


@pytest.mark.parametrize(
    ("name", "factor", "again"),
    [
        ("ddp", 1.0, 0.0),
        ("zero", 1.0, 0.0),
        ("fsdp", 1.5, 1.0),
        ("deepspeed-zero2", 1.0, 0.5),
        ("deepspeed-zero3", 1.5, 1.5),
    ],
)
def test_without_adapters_all_gradients_are_exchanged(name: str, factor: float, again: float) -> None:
    """`again`: what a further micro-batch gathers and, under DeepSpeed, reduces."""
    whole = 2 * ELEMENTS
    assert exchanged_by(JOB, STRATEGIES[name], Changes()) == Exchanged(factor * whole, again * whole, LAYERS)


def test_adapters_leave_their_own_gradients_and_what_is_gathered() -> None:
    ddp, fsdp = (exchanged_by(JOB, STRATEGIES[name], Changes(lora=RANK)) for name in ("ddp", "fsdp"))
    assert ddp.bytes == pytest.approx(SHARE * 4 * ELEMENTS)  # adapters are in fp32
    assert ddp.tensors == 2 * LAYERS
    assert fsdp.bytes == pytest.approx((1 + 3.0 * SHARE) * 2 * ELEMENTS)
    assert fsdp.again == pytest.approx((1 + 2.0 * SHARE) * 2 * ELEMENTS)
    four = exchanged_by(JOB, STRATEGIES["fsdp"], Changes(qlora=RANK))
    assert four.bytes == pytest.approx((FORMATS["nf4"].held_bytes / 2 + 3.0 * SHARE) * 2 * ELEMENTS)
    half = exchanged_by(JOB, STRATEGIES["ddp"], Changes(lora=RANK, lora_precision="bf16"))
    assert half.bytes == pytest.approx(SHARE * 2 * ELEMENTS)


def test_adapters_on_half_of_the_layers_exchange_half() -> None:
    names = [f"{number}.{name}" for number in range(LAYERS // 2) for name in ("q_proj", "o_proj")]
    layers = tuple(Layer(name, 2.0 * WIDTH**2, 0.0, (WIDTH, WIDTH)) for name in names)
    named = replace(JOB, step=replace(STEP, layers=layers))
    found = exchanged_by(named, STRATEGIES["ddp"], Changes(lora=RANK, lora_targets="q_proj"))
    assert found.bytes == pytest.approx(SHARE * 2 * ELEMENTS)
    assert found.tensors == LAYERS


def test_without_operators_adapters_are_not_taken_into_account() -> None:
    unknown = replace(JOB, step=None)
    assert exchanged_by(unknown, STRATEGIES["ddp"], Changes(lora=RANK)).bytes == 2 * ELEMENTS


def test_unknown_gradients_are_an_error() -> None:
    with pytest.raises(PredictionError, match="gradient_bytes is not known"):
        exchanged_by(replace(JOB, gradient_bytes=None), STRATEGIES["ddp"], Changes())


AMP = replace(
    JOB, gradient_bytes=4 * ELEMENTS, step=replace(STEP, precision="amp-bf16", memory=StepMemory(4 * ELEMENTS))
)  # fmt: skip


@pytest.mark.parametrize(
    ("job", "strategy", "precision", "reduced_in", "bytes_of_each"),
    [
        (JOB, "ddp", None, None, 2),
        (JOB, "ddp", "fp32", None, 4),
        (JOB, "ddp", "amp-bf16", None, 4),
        (JOB, "ddp", "fp8", None, 2),  # parameters stay as they were
        (AMP, "ddp", None, None, 4),
        (AMP, "ddp", "bf16", None, 2),
        (AMP, "ddp", "fp8", None, 4),
        (AMP, "ddp", None, "bf16", 2),  # a hook compresses
        (JOB, "fsdp", None, None, 1.5 * 2),
        (JOB, "fsdp", "fp32", None, 1.5 * 4),
        (AMP, "fsdp", None, None, 1.5 * 2),
        (AMP, "fsdp", None, "fp32", 2 + 0.5 * 4),
        (AMP, "fsdp", "fp8", None, 1.5 * 2),
        (AMP, "zero", "bf16", None, 2),
    ],
)
def test_gradients_have_the_type_of_their_parameters_and_fsdp_has_its_own(
    job: Workload, strategy: str, precision: str | None, reduced_in: str | None, bytes_of_each: float
) -> None:
    found = exchanged_by(job, STRATEGIES[strategy], Changes(), precision, reduced_in)
    assert found.bytes == pytest.approx(bytes_of_each * ELEMENTS)
