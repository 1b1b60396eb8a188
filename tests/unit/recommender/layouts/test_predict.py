"""Predictions of layouts: what is measured decides, and what cannot be is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddlprof.model.operators import Operator, StepOperators
from ddlprof.recommender import Estimate, Layout, Measurement, PredictionError, Target, Workload, predict, transformer
from ddlprof.recommender.layouts.memory import LayoutMemory
from ddlprof.recommender.layouts.predict import LayoutPredictor
from ddlprof.recommender.target import default_catalog
from tests.unit.recommender.layouts.made_up import SIZES

JOB = transformer(**SIZES)
TARGET = Target(
    gpu_model="H100-SXM5-80GB", network_gbps=3200.0, placement=(8,) * 8, batch_per_gpu=1, grad_accum=16,
    precision="bf16", layout=Layout(tensor=8, pipeline=2, shard="zero1"),
)  # fmt: skip


def measured(target: Target, step_s: float, **more: Any) -> Measurement:
    return Measurement(
        gpu_model=target.gpu_model, network_gbps=target.network_gbps, placement=target.placement,
        batch_per_gpu=target.batch_per_gpu, grad_accum=target.grad_accum or 1, precision="bf16", layout=target.layout,
        step_s=step_s, **more,
    )  # fmt: skip


def with_measured(*measurements: Measurement) -> Workload:
    return replace(JOB, measurements=measurements)


def parts(found: Estimate) -> float:
    return float(sum(vars(found.times).values()))


def test_the_classes_are_the_step_and_the_dimensions_its_communication() -> None:
    found = predict(JOB, TARGET)
    assert parts(found) == pytest.approx(found.step_s)
    assert found.low_s < found.step_s < found.high_s
    assert found.dimensions is not None
    assert set(found.dimensions) == {"tensor", "pipeline", "context", "expert", "data"}
    assert sum(found.dimensions.values()) == pytest.approx(found.interconnect_s + found.network_s)
    assert found.bubble_s > 0
    tokens = 4 * 16 * 4096
    assert found.tokens_per_s == pytest.approx(tokens / found.step_s)
    assert JOB.flops_per_sample is not None
    assert found.mfu == pytest.approx(JOB.flops_per_sample * 64 / found.step_s / (64 * 989.4e12))


@pytest.mark.parametrize(
    ("link", "usual", "same_gbps"),
    [("nvlink4", "400 Gbit/s for each GPU", 3200.0), ("pcie5", "25 Gbit/s for each machine", 25.0)],
)
def test_what_is_said_of_an_unknown_network_is_what_is_taken(link: str, usual: str, same_gbps: float) -> None:
    unknown = predict(JOB, replace(TARGET, interconnect=link, network_gbps=None))
    assert f"network not known: taken as {usual}" in unknown.basis
    assert unknown.step_s == pytest.approx(
        predict(JOB, replace(TARGET, interconnect=link, network_gbps=same_gbps)).step_s
    )


def test_a_measured_layout_is_the_measurement() -> None:
    first = predict(JOB, TARGET)
    job = with_measured(measured(TARGET, 3.0, exposed_comm_s=1.2))
    found = predict(job, TARGET)
    assert found.step_s == pytest.approx(3.0, rel=0.01)
    assert found.interconnect_s + found.network_s + found.bubble_s == pytest.approx(1.2, rel=0.01)
    assert found.high_s / found.low_s < 1.05 < first.high_s / first.low_s


def test_a_measured_layout_corrects_its_neighbours_more_than_others() -> None:
    job = with_measured(measured(TARGET, 2 * predict(JOB, TARGET).step_s))
    near = replace(TARGET, layout=Layout(tensor=4, pipeline=2, shard="zero1"))
    far = replace(near, gpu_model="A100-80GB", layout=Layout(pipeline=8, recompute="full"), batch_per_gpu=8)
    ratios = [predict(job, target).step_s / predict(JOB, target).step_s for target in (TARGET, near, far)]
    assert 2.0 > ratios[0] > ratios[1] > ratios[2] > 1.3
    widths = [predict(job, target).high_s / predict(job, target).low_s for target in (near, far)]
    assert widths[0] < widths[1] < predict(JOB, far).high_s / predict(JOB, far).low_s


def test_a_measurement_on_a_cpu_says_nothing() -> None:
    on_cpu = Measurement(placement=(2,), batch_per_gpu=1, step_s=9.0)
    assert predict(with_measured(on_cpu), TARGET) == predict(JOB, TARGET)


def test_a_named_software_narrows_the_interval() -> None:
    known, unknown = (predict(replace(JOB, software=name), TARGET) for name in ("nanotron", None))
    assert known.high_s / known.low_s < unknown.high_s / unknown.low_s
    assert "software: nanotron" in known.basis
    eight_bits = replace(TARGET, precision="fp8")
    named = predict(replace(JOB, software="megatron"), eight_bits)
    assert predict(JOB, eight_bits).step_s == named.step_s
    with pytest.raises(PredictionError, match="software 'deepspeed' is not known; one of: "):
        predict(replace(JOB, software="deepspeed"), TARGET)


def test_memory_tells_what_fits() -> None:
    big = transformer(**{**SIZES, "layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672})
    assert not predict(big, replace(TARGET, layout=Layout(tensor=2, shard="none"))).fits_memory
    found = predict(big, replace(TARGET, layout=Layout(tensor=8, pipeline=8, shard="zero1")))
    assert found.fits_memory
    assert found.memory_gib is not None
    assert 20 < found.memory_gib < 60


def test_weights_may_be_in_16_bit_alone_where_neither_software_nor_precision_says() -> None:
    """By the count, a model has 18 bytes of a parameter on one GPU, and at least 8."""
    one = replace(TARGET, placement=(1,), grad_accum=1, layout=Layout(recompute="full"))

    def memory(software: str | None, precision: str) -> LayoutMemory:
        predictor = LayoutPredictor(replace(JOB, software=software), default_catalog())
        return predictor.memory(replace(one, precision=precision))

    found, named, autocast = memory(None, "bf16"), memory("megatron", "bf16"), memory(None, "amp-bf16")
    assert named.needed.low_gib == pytest.approx(0.8 * named.gib)
    assert autocast.needed.low_gib == pytest.approx(0.8 * autocast.gib)
    assert found.gib == autocast.gib
    states = found.weights + found.gradients + found.states
    assert found.needed.low_gib == pytest.approx(0.8 * (found.gib - states * (1 - 8 / 18) / 2**30))


@pytest.mark.parametrize(
    ("job", "change", "said"),
    [
        (JOB, {"layout": Layout(tensor=3)}, "layout tp3: 64 GPUs cannot be divided"),
        (JOB, {"precision": "fp32"}, "in bf16, amp-bf16, fp16, amp-fp16, fp8 only, not in fp32"),
        (JOB, {"gpu_model": None}, "target without a GPU"),
        (JOB, {"host_launch_us": 20.0}, "layouts have coefficients for the host"),
        (Workload(name="resnet", flops_per_sample=1e9), {}, "resnet: layouts need the sizes of a transformer"),
    ],
)
def test_what_cannot_be_predicted_is_refused(job: Workload, change: dict[str, Any], said: str) -> None:
    with pytest.raises(PredictionError, match=said):
        predict(job, replace(TARGET, **change))


def counted(precision: str) -> Workload:
    """The job with operators: a product and its loss."""
    kinds = {"bf16": "bf16", "amp-bf16": "bf16"}
    product = Operator(
        "product", "forward", "mm", kinds.get(precision, "fp32"), (1, 4096, 4096, 4096), 2.0 * 4096**3, 1e8, 1, 32,
        grows=1,
    )  # fmt: skip
    step = StepOperators(1, precision, (product,), optimizer="adamw")
    return replace(JOB, step=step, software=None)


def test_a_counted_job_exchanges_and_keeps_the_types_that_it_was_counted_in() -> None:
    """Adam on weights in 16 bit keeps 8 bytes of a parameter, on weights in fp32 16, a trainer that has both 18."""
    pure, autocast, sizes = (
        LayoutPredictor(each, default_catalog(), alone_s=None).memory(replace(TARGET, precision=precision))
        for each, precision in ((counted("bf16"), "bf16"), (counted("amp-bf16"), "amp-bf16"), (JOB, "bf16"))
    )
    assert pure.weights + pure.gradients == pytest.approx((autocast.weights + autocast.gradients) / 2)
    assert pure.states == pytest.approx(autocast.states / 2)
    assert sizes.states == pytest.approx(3 * pure.states)
    far = replace(TARGET, network_gbps=50.0, placement=(8,) * 16, grad_accum=1)
    found = [
        predict(each, replace(far, precision=precision)).dimensions
        for each, precision in ((counted("bf16"), "bf16"), (counted("amp-bf16"), "amp-bf16"))
    ]
    assert all(found)
    narrow_s, wide_s = (each["data"] for each in found if each)
    assert 0.4 * wide_s < narrow_s < 0.7 * wide_s
