"""Memory at other batches, precisions and shardings: the arithmetic by hand."""

from __future__ import annotations

import pytest

from ddlprof.recommender import Measurement, Workload
from ddlprof.recommender.compute.memory import CONTEXT_GIB, JobMemory

GIB = 2**30


def job(
    peak_gib: float | None = 10.0, gradients_gib: float | None = 1.0, strategy: str = "ddp", precision: str = "fp32"
) -> Workload:
    """Batch 8 on four GPUs: 4 GiB of states, 6 GiB of activations."""
    run = Measurement(
        "g4dn.12xlarge", placement=(4,), batch_per_gpu=8, step_s=0.5, strategy=strategy, precision=precision
    )
    return Workload(
        "job",
        gradient_bytes=None if gradients_gib is None else gradients_gib * GIB,
        peak_memory_bytes=None if peak_gib is None else int(peak_gib * GIB),
        measurements=[run],
    )


def needed(workload: Workload, batch: int = 8, precision: str = "fp32", strategy: str = "ddp", world: int = 4) -> float:
    found = JobMemory(workload, precision=precision, strategy=strategy).needed_gib(batch, world)
    assert found is not None
    return found - CONTEXT_GIB


def test_measured_batch_needs_the_measured_peak() -> None:
    assert needed(job()) == pytest.approx(10)


def test_only_activations_grow_with_the_batch() -> None:
    assert needed(job(), batch=16) == pytest.approx(16)
    assert needed(job(), batch=4) == pytest.approx(7)


def test_sharding_divides_the_states() -> None:
    assert needed(job(), strategy="fsdp", world=8) == pytest.approx(6.5)
    assert needed(job(), strategy="zero", world=8) == pytest.approx(6 + 2 + 2 / 8)


def test_run_that_was_sharded_needs_more_without() -> None:
    assert needed(job(peak_gib=7.0, strategy="fsdp")) == pytest.approx(10)


def test_fp32_doubles_activations_of_half_precision_and_half_takes_nothing_off() -> None:
    assert needed(job(precision="amp")) == pytest.approx(16)
    assert needed(job(), precision="bf16") == pytest.approx(10)


def test_optimizer_smaller_than_adam_leaves_room_for_activations() -> None:
    assert needed(job(peak_gib=3.0), batch=16) == pytest.approx(3.3)


def test_without_gradient_bytes_errs_on_the_large_side() -> None:
    workload = job(gradients_gib=None)
    assert needed(workload, batch=16) == pytest.approx(20)
    assert needed(workload, batch=4) == pytest.approx(10)
