"""What DeepSpeed adds to a step: bytes by parameter, the host's work for each of them, and copies in fp32."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.model.operators import StepOperators
from ddlprof.recommender import Target, Workload, predict
from ddlprof.recommender.compute.deepspeed import GATHER_OPERATORS, HOOK_OPERATORS
from ddlprof.recommender.compute.memory import GIB, JobMemory
from ddlprof.recommender.compute.what_if import as_asked, trained
from tests.unit.recommender.compute.test_what_if import ELEMENTS, STEP, TENSORS

HALF = as_asked(STEP, batch=8, precision="bf16")
JOB = Workload(name="job", gradient_bytes=2.0 * ELEMENTS, parameter_tensors=TENSORS, step=HALF)


def asked(**more: object) -> Target:
    return replace(Target(gpu_model="A100-SXM4-80GB", batch_per_gpu=8, precision="bf16"), **more)  # type: ignore[arg-type]


def test_the_host_works_for_each_parameter_of_each_micro_batch() -> None:
    def added_s(passes: int) -> float:
        plain, by_it = (
            predict(JOB, asked(grad_accum=passes, strategy=strategy)).step_s
            for strategy in ("zero2", "deepspeed-zero2")
        )
        return by_it - plain

    assert added_s(1) > 0
    assert added_s(9) == pytest.approx(added_s(1) + 4 * (added_s(3) - added_s(1)), rel=0.02)
    assert added_s(9) > 3 * added_s(1)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_zero_3_works_for_frozen_parameters_too_in_each_pass(checkpointing: bool) -> None:
    def hooks(stage: int) -> float:
        step = as_asked(HALF, batch=8, deepspeed=stage, lora=2, checkpointing=checkpointing)
        return sum(each.count for each in step.operators if each.name in ("deepspeed_hooks", "deepspeed_gathers"))

    _, adapters = trained(as_asked(HALF, batch=8, lora=2))
    assert hooks(2) == pytest.approx(3 * HOOK_OPERATORS * adapters)
    assert hooks(3) == pytest.approx(3 * GATHER_OPERATORS * (2 + checkpointing) * (adapters + TENSORS))


def test_longer_sequences_hide_what_the_host_does() -> None:
    def ratio(batch: int) -> float:
        whole, by_it = (
            predict(JOB, asked(batch_per_gpu=batch, strategy=each)).step_s for each in ("zero2", "deepspeed-zero2")
        )
        return by_it / whole

    assert ratio(4_000_000) < 0.5 * ratio(8)


@pytest.mark.parametrize("gpus", [1, 4])
def test_copies_in_fp32_are_kept_and_updated(gpus: int) -> None:
    """ZeRO-2 of a model in 16 bit: its weights (2), and of each rank's part the copy and two moments (12), gradients
    (2), and, for the update, flat in 16 bit and in fp32 (6)."""
    need = JobMemory(JOB, precision="bf16", strategy="deepspeed-zero2").need(8, gpus)
    assert need is not None
    assert need.parameters == 2 * ELEMENTS
    assert need.optimizer == pytest.approx(12 * ELEMENTS / gpus)
    states = need.parameters + need.optimizer + need.gradients
    plain = JobMemory(JOB, precision="bf16", strategy="zero2").need(8, gpus)
    assert plain is not None
    assert states + need.update + need.gathered >= (14 * ELEMENTS + 2 * ELEMENTS) / gpus
    assert need.bytes > plain.bytes
    assert need.bytes < 64 * GIB


def test_buckets_are_whole_however_little_is_trained() -> None:
    """Two of 5e8 elements in 16 bit, and of gradients that are accumulated a flat copy for each micro-batch."""
    memory = replace(HALF.memory, trained_bytes=2e6, points=((0.0, 5e9), (2e6, 1e9)))  # type: ignore[type-var]
    job = JobMemory(replace(JOB, step=replace(HALF, memory=memory)), precision="bf16", strategy="deepspeed-zero2")
    once, accumulated = job.need(8, 1, 1), job.need(8, 1, 8)
    assert once is not None
    assert accumulated is not None
    assert once.gathered == accumulated.gathered == 2e9
    assert accumulated.gradients - once.gradients == pytest.approx(2e6)


def test_the_allocator_keeps_buckets_in_which_the_update_does_not_fit() -> None:
    memory = replace(HALF.memory, trained_bytes=4e9, points=((4e9, 0.0),))  # type: ignore[type-var]
    need = JobMemory(replace(JOB, step=replace(HALF, memory=memory)), strategy="deepspeed-zero2").need(8, 1)
    assert need is not None
    assert (need.update, need.gathered) == (3 * 4e9, 2e9)


def test_zero_3_may_update_in_parts() -> None:
    """It is not refused where it needs 1e9 parameters' gradients in fp32 at a time, and not all."""
    memory = replace(HALF.memory, trained_bytes=8e9, points=((8e9, 0.0),))  # type: ignore[type-var]
    job = replace(JOB, step=replace(HALF, memory=memory))
    whole, parts = (JobMemory(job, strategy=f"deepspeed-zero{stage}").need(8, 1) for stage in (2, 3))
    assert whole is not None
    assert parts is not None
    assert (whole.update, parts.update) == (3 * 8e9, 3 * 8e9)
    assert parts.bytes - parts.low > whole.bytes - whole.low + 10e9


def gathering(largest: float, trained: float = 2e6) -> JobMemory:
    """ZeRO-3 of 1e11 bytes of weights, the largest of which is frozen."""
    head = next(each for each in HALF.operators if (each.phase, each.kind) == ("forward", "product"))
    step = replace(HALF, operators=(*HALF.operators, replace(head, bytes=largest, fixed_bytes=largest)))
    memory = replace(
        HALF.memory, parameter_bytes=1e11, largest_tensor_bytes=1e6, trained_bytes=trained, points=((trained, 1e9),)
    )  # type: ignore[type-var]
    return JobMemory(replace(JOB, step=replace(step, memory=memory)), strategy="deepspeed-zero3")


@pytest.mark.parametrize(("largest", "kept"), [(6e9, 4 * 6e9), (1e9, 2 * 2e9 + 1e9)])
def test_zero_3_gathers_the_largest_weight_though_it_is_frozen(largest: float, kept: float) -> None:
    """On several GPUs, the allocator keeps for the stream of gathers more than is gathered at once; the lower end does
    not count on it."""
    one, four = (gathering(largest).need(8, gpus) for gpus in (1, 4))
    assert one is not None
    assert four is not None
    assert one.gathered == 2e9 + 2e9 + largest
    assert four.gathered == 2e9 + kept
    assert four.low == pytest.approx(0.95 * four.bytes - (kept - 2e9 - largest))


def test_zero_3_updates_in_parts_beside_what_its_gathers_keep() -> None:
    need = gathering(6e9, trained=8e10).need(8, 4)
    assert need is not None
    assert (need.update, need.gathered) == (6e9, 2e9 + 4 * 6e9)


def test_parameters_in_fp32_have_no_copies() -> None:
    wide: StepOperators = as_asked(STEP, batch=8, deepspeed=2)
    assert wide == STEP
    frozen = replace(HALF, operators=tuple(each for each in HALF.operators if each.phase != "optimizer"))
    assert as_asked(frozen, batch=8, deepspeed=2) == frozen


def test_gradients_of_every_micro_batch_are_exchanged() -> None:
    """Parameters are gathered once, so nine micro-batches send five times as much as one."""

    def sent_s(passes: int, strategy: str) -> float:
        slow = asked(
            placement=(1, 1), network_gbps=0.1, grad_accum=passes, strategy=strategy, batch_per_gpu=1,
            gpu_model="A100-SXM4-80GB",
        )  # fmt: skip
        return float(predict(JOB, slow).network_s)

    assert sent_s(9, "zero2") == pytest.approx(sent_s(1, "zero2"), rel=0.2)
    assert sent_s(9, "deepspeed-zero2") > 3 * sent_s(1, "deepspeed-zero2")
    for name in ("fsdp", "deepspeed-zero3"):  # which gather parameters for each of them
        assert sent_s(9, name) > 5 * sent_s(1, name)
