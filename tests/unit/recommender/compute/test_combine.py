"""One estimate from operators, measured steps and other jobs. Made-up steps; the coefficients are the shipped ones."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddlprof.instance_catalog import Gpu, Reached
from ddlprof.model.operators import Operator, StepOperators
from ddlprof.recommender import Measurement, Target, Workload, predict
from ddlprof.recommender.compute import combine
from ddlprof.recommender.compute.micro_batch import ComputeEstimate, ComputeModel
from ddlprof.recommender.compute.step_parts import Changes, FlopParts, OperatorParts, shares, total_s
from ddlprof.recommender.target import default_catalog

BATCH = 32


def layer(phase: str, kind: str = "product") -> Operator:
    rows, width = BATCH * 128, 1024
    flops = 2.0 * rows * width * width if kind == "product" else 0.0
    shape = (1, rows, width, width) if kind == "product" else (rows * width,)
    fixed = 4.0 * width * width if kind == "product" else 0.0
    return Operator(
        kind, phase, "mm" if kind == "product" else "gelu", "fp32", shape, flops, 8.0 * rows * width + fixed, 1.0, 48.0,
        grows=1 if kind == "product" else 0, fixed_bytes=fixed,
    )  # fmt: skip


STEP = StepOperators(
    BATCH,
    "fp32",
    (layer("forward"), layer("forward", "elementwise"), replace(layer("backward"), count=96.0),
     layer("backward", "elementwise"),
     Operator("optimizer", "optimizer", "_fused_sgd_", "fp32", (5 * 10**7, 96), 0.0, 6e8, 1.0, 1.0, fixed_bytes=6e8)),
    optimizer="sgd",
)  # fmt: skip
GPUS = ("T4", "V100", "A100", "H100", "L4")


def gpu(name: str) -> Gpu:
    return default_catalog().gpu(name)


def step_on(name: str, step_s: float, batch: int = BATCH) -> Measurement:
    return Measurement(placement=(1,), batch_per_gpu=batch, step_s=step_s, gpu_model=name)


def job(*measurements: Measurement, step: StepOperators | None = STEP) -> Workload:
    return Workload("job", step=step, measurements=measurements)


def on(name: str, *measurements: Measurement, others: tuple[Workload, ...] = (), batch: int = BATCH) -> ComputeEstimate:
    return ComputeModel(job(*measurements), others=others).estimate(gpu(name), batch, "fp32")


def width(found: ComputeEstimate) -> float:
    return math.log(found.seconds.high_s / found.seconds.low_s)


def test_operators_say_more_than_their_flops() -> None:
    """By the errors that the fit found on models left out, each case alike."""
    file = json.loads((Path(combine.__file__).with_name("coefficients.json")).read_text(encoding="utf-8"))["errors"]
    rows = [dict(zip(file["columns"], row, strict=True)) for row in file["rows"]]
    means = {
        known: sum(row["cases"] * row["mean"] for row in of) / sum(row["cases"] for row in of)
        for known in ("operators", "flops")
        if (of := [row for row in rows if (row["what"], row["known"]) == ("nothing measured", known)])
    }
    assert means["operators"] < 0.85 * means["flops"]


SLOWER = tuple(
    step_on(name, factor * on(name, batch=batch).seconds.mean_s, batch)
    for name, batch, factor in (("T4", BATCH, 1.2), ("V100", BATCH, 1.3), ("T4", 8, 1.25))
)
"""Steps that take somewhat longer than the operators say."""


@pytest.mark.parametrize("name", GPUS)
def test_more_measured_steps_never_widen_the_interval(name: str) -> None:
    widths = [width(on(name, *SLOWER[:n])) for n in range(1, 4)]
    assert all(after <= before * 1.02 for before, after in itertools.pairwise(widths))


def test_the_order_of_what_was_measured_does_not_matter() -> None:
    found = {on("A100", *order).seconds.mean_s for order in itertools.permutations(SLOWER)}
    assert max(found) / min(found) < 1 + 1e-6


def test_other_jobs_on_the_target_tell_of_it() -> None:
    """Three jobs that all take half as long again on an L4 as the operators say."""
    plain = on("L4", step_on("T4", 1.0))
    scale = 1.0 / on("T4").seconds.mean_s
    others = tuple(
        replace(job(step_on("T4", 1.0), step_on("L4", 1.5 * scale * on("L4").seconds.mean_s)), name=f"other {n}")
        for n in range(3)
    )
    with_others = on("L4", step_on("T4", 1.0), others=others)
    assert with_others.seconds.mean_s > 1.15 * plain.seconds.mean_s
    assert width(with_others) < width(plain)
    assert any("3 other jobs" in line for line in with_others.basis)
    assert on("L4", step_on("T4", 1.0), others=others[::-1]).seconds.mean_s == pytest.approx(
        with_others.seconds.mean_s, rel=1e-6
    )


def test_a_probe_of_a_gpu_that_nobody_measured_counts() -> None:
    name = "L40S"
    probed = replace(default_catalog(), reached=(Reached(gpu(name).gpu_model, fp32_tflops=40.0, memory_gb_s=700.0),))
    before = ComputeModel(job()).estimate(gpu(name), BATCH, "fp32")
    after = ComputeModel(job(), catalog=probed).estimate(gpu(name), BATCH, "fp32")
    assert after.seconds.mean_s > 1.1 * before.seconds.mean_s  # it reaches less than the data sheet says
    assert width(after) < 1.05 * width(before)
    assert any("was measured" in line for line in after.basis)


def test_a_run_on_a_cpu_gives_the_operators() -> None:
    on_cpu = Measurement(placement=(1,), batch_per_gpu=8, step_s=30.0)
    assert on("T4", on_cpu) == on("T4")
    estimate = predict(job(on_cpu), Target(gpu_model="T4", batch_per_gpu=BATCH))
    assert any("operators" in line for line in estimate.basis)


def test_operators_that_nobody_fitted_are_named_and_widen_the_interval() -> None:
    usual = replace(layer("forward", "elementwise"), count=2000.0)
    strange = replace(usual, kind="other", name="fft_c2c")
    known, found = (
        ComputeModel(job(step=replace(STEP, operators=(*STEP.operators, more)))).estimate(gpu("T4"), BATCH, "fp32")
        for more in (usual, strange)
    )
    assert width(found) > 1.1 * width(known)
    assert any("fft_c2c" in line and "%" in line for line in found.basis)


def test_changes_that_are_asked_for_change_the_step() -> None:
    model = ComputeModel(job(step_on("T4", 1.0)))
    plain = model.estimate(gpu("T4"), BATCH, "fp32").seconds.mean_s
    assert model.estimate(gpu("T4"), BATCH, "fp32", Changes(checkpointing=True)).seconds.mean_s > 1.1 * plain
    assert model.estimate(gpu("T4"), BATCH, "fp32", Changes(compiled=True)).seconds.mean_s < plain


@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp-bf16", "fp16"])
def test_every_gpu_gets_an_estimate_in_order(precision: str) -> None:
    model = ComputeModel(job(step_on("T4", 1.0)))
    for one in default_catalog().gpus:
        if one.fp32_tflops and one.memory_bandwidth_gb_s:
            seconds = model.estimate(one, BATCH, precision).seconds
            assert 0 < seconds.low_s < seconds.mean_s < seconds.high_s < 100


def test_shares_of_parts_are_the_derivative_of_the_total() -> None:
    parts = np.array([0.02, 0.01, 0.004, 0.03, 0.0005])
    up = np.exp(1e-6)
    for i, share in enumerate(shares(parts)):
        moved = parts.copy()
        moved[i] *= up
        slope = math.log(float(total_s(moved)) / float(total_s(parts))) / 1e-6
        assert share == pytest.approx(slope, rel=1e-3)
    assert shares(parts).sum() == pytest.approx(1.0)


def test_parts_of_operators_grow_with_the_batch_and_what_is_fixed_hardly() -> None:
    source = OperatorParts(STEP, default_catalog())
    small, large = (source.at(gpu("T4"), batch, "fp32", Changes()).seconds for batch in (8, 64))
    assert large[0] / small[0] == pytest.approx(8, rel=0.1)
    assert large[2] < 3 * small[2]
    assert large[3] == pytest.approx(small[3])


def test_flops_are_found_that_make_a_step_so_long() -> None:
    for seconds in (0.004, 0.3, 20.0):
        found = FlopParts(1e9, None, "steps").scaled_to(seconds, gpu("T4"), 32, "fp32")
        assert float(total_s(found.at(gpu("T4"), 32, "fp32", Changes()).seconds)) == pytest.approx(seconds, rel=0.03)
