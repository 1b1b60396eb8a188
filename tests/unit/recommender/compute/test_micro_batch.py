"""Computation on other GPUs, batches and precisions. Made-up measurements; the coefficients are the shipped ones."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import Any

import pytest

from ddlprof.instance_catalog import Gpu
from ddlprof.model.operators import Operator, StepOperators
from ddlprof.recommender import Measurement, Workload
from ddlprof.recommender.compute.micro_batch import ComputeEstimate, ComputeModel
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.target import default_catalog


def gpu(name: str) -> Gpu:
    return default_catalog().gpu(name)


def measured(
    batch: int, step_s: float, gpu_model: str = "T4", placement: tuple[int, ...] = (1,), **more: Any
) -> Measurement:
    return Measurement(placement=placement, batch_per_gpu=batch, step_s=step_s, gpu_model=gpu_model, **more)


def job(*measurements: Measurement, **more: object) -> Workload:
    return Workload("job", measurements=measurements, **more)  # type: ignore[arg-type]


def compute(workload: Workload, gpu: Gpu, batch: int, precision: str) -> ComputeEstimate:
    return ComputeModel(workload).estimate(gpu, batch, precision)


SERIES = (measured(16, 0.06), measured(32, 0.1), measured(64, 0.18), measured(128, 0.34))
"""0.02 s and 0.0025 s a sample."""


@pytest.mark.parametrize("batch", [8, 24, 100, 200])
def test_other_batches_follow_fixed_and_per_sample_cost(batch: int) -> None:
    found = compute(job(*SERIES), gpu("T4"), batch, "fp32")
    assert found.seconds.mean_s == pytest.approx(0.02 + 0.0025 * batch, rel=0.12)


def test_one_measured_batch_never_shrinks_with_more_samples() -> None:
    model = ComputeModel(job(measured(32, 0.1)))
    seconds = [model.estimate(gpu("T4"), batch, "fp32").seconds.mean_s for batch in (1, 8, 32, 64, 256)]
    assert seconds == sorted(seconds)
    assert 0.1 < seconds[3] < 0.2


def test_noise_does_not_extrapolate_to_less_than_nothing() -> None:
    noisy = job(measured(16, 0.05), measured(32, 0.15))
    assert compute(noisy, gpu("T4"), 8, "fp32").seconds.mean_s > 0
    falling = job(measured(16, 0.05), measured(32, 0.04))
    assert compute(falling, gpu("T4"), 64, "fp32").seconds.mean_s >= 0.04


def test_faster_gpu_gains_more_on_long_steps_than_on_launch_bound_ones() -> None:
    long = compute(job(measured(64, 0.5)), gpu("V100"), 64, "fp32").seconds.mean_s / 0.5
    short = compute(job(measured(64, 0.003)), gpu("V100"), 64, "fp32").seconds.mean_s / 0.003
    assert 1 / 4 < long < 1 / 2.3
    assert short > 1.5 * long


def test_step_of_many_tensors_is_launches_and_of_few_is_work() -> None:
    step = measured(16, 0.028, "V100")
    few, many = (compute(job(step, parameter_tensors=count), gpu("K80"), 16, "fp32") for count in (20, 600))
    assert many.seconds.mean_s < 0.9 * few.seconds.mean_s


def test_several_batches_narrow_the_interval_at_another() -> None:
    one = compute(job(measured(64, 0.18)), gpu("T4"), 24, "fp32").seconds
    several = compute(job(*SERIES), gpu("T4"), 24, "fp32").seconds
    assert several.high_s / several.low_s < one.high_s / one.low_s


def test_every_gpu_with_a_data_sheet_gets_an_estimate() -> None:
    model = ComputeModel(job(*SERIES))
    for one in default_catalog().gpus:
        if one.fp32_tflops and one.memory_bandwidth_gb_s:
            for precision in ("fp32", "tf32", "amp"):
                seconds = model.estimate(one, 64, precision).seconds
                assert 0 < seconds.low_s < seconds.mean_s < seconds.high_s < 100


def test_operators_of_the_update_alone_are_no_step() -> None:
    update = Operator("optimizer", "optimizer", "adam", "fp32", (10**6, 4), 1e6, 1e7, 1.0, 1.0)
    of_flops, with_update = (
        compute(job(flops_per_sample=1e9, step=step), gpu("T4"), 32, "fp32").seconds
        for step in (None, StepOperators(32, "fp32", (update,)))
    )
    assert with_update == of_flops
    with pytest.raises(PredictionError, match="no FLOPs or operators"):
        compute(job(step=StepOperators(32, "fp32", ())), gpu("T4"), 32, "fp32")


def test_run_on_a_cpu_counts_for_its_flops_only() -> None:
    on_cpu = Measurement(placement=(1,), batch_per_gpu=8, step_s=3.0)
    with_run = compute(job(on_cpu, flops_per_sample=24e9), gpu("T4"), 64, "fp32")
    assert with_run == compute(Workload("job", flops_per_sample=24e9), gpu("T4"), 64, "fp32")


def test_parameter_tensors_keep_a_tiny_step_from_vanishing() -> None:
    found = compute(Workload("job", flops_per_sample=1e3, parameter_tensors=200), gpu("H100"), 1, "amp")
    assert found.seconds.mean_s > 0.01


def test_step_on_several_gpus_is_an_upper_bound_unless_its_communication_is_known() -> None:
    bound = compute(job(measured(32, 0.2, placement=(4,))), gpu("T4"), 32, "fp32")
    known = compute(job(measured(32, 0.2, placement=(4,), exposed_comm_s=0.05)), gpu("T4"), 32, "fp32")
    assert bound.seconds.mean_s == pytest.approx(0.2, rel=0.05)
    assert any("taken for computation" in line for line in bound.basis)
    assert known.seconds.mean_s == pytest.approx(0.15, rel=0.01)
    assert known.seconds.high_s / known.seconds.low_s < bound.seconds.high_s / bound.seconds.low_s


def test_measured_computation_and_accumulation_are_used() -> None:
    accumulated = job(measured(32, 0.5, compute_s=0.4, grad_accum=4))
    assert compute(accumulated, gpu("T4"), 32, "fp32").seconds.mean_s == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(
    ("workload", "precision", "says"),
    [
        (Workload("job"), "fp32", "no step measured"),
        (job(measured(32, 0.1)), "fp8", "precision 'fp8'"),
        (job(measured(32, 0.1)), "fp9", "precision 'fp9'"),
        (job(measured(32, 0.1, data_s=0.105)), "fp32", "add up to more"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(workload: Workload, precision: str, says: str) -> None:
    with pytest.raises(PredictionError, match=says) as error:
        compute(workload, gpu("T4"), 32, precision)
    assert "\n" not in str(error.value)


def test_shipped_coefficients_say_where_they_are_from_and_hold_no_nonsense() -> None:
    data = json.loads(files("ddlprof.recommender").joinpath("compute/coefficients.json").read_text(encoding="utf-8"))
    assert data["as_of"]
    assert data["sources"]
    columns = data["errors"]["columns"]
    rows = [dict(zip(columns, row, strict=True)) for row in data["errors"]["rows"]]
    assert {row["what"] for row in rows} >= {"nothing measured", "model left out"}
    for part in ("operators", "flops"):
        learned = data[part]
        effects = [row for by in learned["gpus"].values() for row in by.values()]
        assert all(math.isfinite(x) and abs(x) < 5 for row in effects for x in row["mean"])
        assert all(0 < x < 1.5 for row in effects for x in row["sd"])
    assert all(0.5 < width < 2 for width in data["widths"].values())
