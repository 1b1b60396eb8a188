"""However a job is asked for, no interval begins below what its operations take at the peak of the data sheet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.model.operators import Operator, StepOperators
from ddlprof.recommender import Measurement, PredictionError, Target, Workload, predict
from ddlprof.recommender.compute.gpu_peaks import peak_of, peaks_of
from ddlprof.recommender.layout import Layout
from ddlprof.recommender.target import default_catalog
from tests.unit.recommender.made_up_layouts import JOB

GPUS = ("A100-SXM4-80GB", "H100-SXM5-80GB", "T4", "V100-SXM2-16GB", "L4", "RTX3090-24GB", "P100-PCIE-16GB")
TYPES = {"fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16", "amp-bf16": "bf16", "amp-fp16": "fp16"}


@st.composite
def products(draw: st.DrawFn) -> StepOperators:
    """Products of any size, with as much in backward, and an update."""
    m, n, k = (2 ** draw(st.integers(3, 14)) for _ in range(3))
    count, batch = float(draw(st.integers(1, 100))), draw(st.sampled_from([1, 8]))
    moved, rows = 4.0 * (m * k + k * n + m * n), batch * m

    def product(phase: str) -> Operator:
        return Operator("product", phase, "mm", "fp32", (1, rows, n, k), 2.0 * rows * n * k, moved, 1, count, grows=1)

    elements = k * n
    update = Operator("optimizer", "optimizer", "_fused_adamw_", "fp32", (elements, 1), 0, 28.0 * elements, 1, count)
    return StepOperators(batch, "fp32", (product("forward"), product("backward"), update), "adamw-fused")


@given(products(), st.sampled_from(GPUS), st.sampled_from(list(TYPES)), st.integers(1, 64), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_a_step_of_operators(step: StepOperators, name: str, precision: str, batch: int, passes: int) -> None:
    flops = 2 * sum(o.flops * o.count for o in step.operators if o.phase == "forward") / step.batch
    target = Target(gpu_model=name, batch_per_gpu=batch, grad_accum=passes, precision=precision)
    counted = Workload("job", step=step, flops_per_sample=flops)
    machine, dtype = peaks_of(default_catalog().gpu(name)), TYPES[precision].replace("tf32", "fp32")
    peak = peak_of(machine, dtype, precision == "tf32")
    # FLOPs alone may be convolutions: a quarter of them by Winograd's algorithm on CUDA cores, or TF32.
    any_kind = peak_of(machine, dtype, True)
    most_flops_s = any_kind.flops_s * (1 if any_kind.tensor else 4)
    for work, flops_s in ((counted, peak.flops_s), (Workload("job", flops_per_sample=flops), most_flops_s)):
        try:
            found = predict(work, target)
        except PredictionError:  # such as fp16 or tf32 where the GPU has none
            continue
        assert found.low_s >= 0.999 * batch * passes * flops / flops_s
        assert found.low_s <= found.step_s <= found.high_s


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_flops_alone_may_be_convolutions_of_fewer_operations(precision: str) -> None:
    """Published steps of VGG-16 in fp32 take two thirds of their FLOPs over the peak of a V100."""
    work = Workload("vgg", flops_per_sample=93e9)
    target = Target(gpu_model="V100-SXM2-16GB", batch_per_gpu=64, precision=precision)
    whole_s = 64 * 93e9 / (15.7e12 if precision == "fp32" else 125e12)
    found = predict(work, target)
    assert (found.low_s < 0.9 * whole_s) == (precision == "fp32")


@given(st.sampled_from(GPUS[:2]), st.floats(0.5, 0.99), st.integers(1, 16), st.data())
@settings(max_examples=40, deadline=None)
def test_a_step_of_a_layout(name: str, mfu: float, sequences: int, data: st.DataObject) -> None:
    seen = Target(gpu_model=name, batch_per_gpu=4, precision="bf16", layout=Layout())
    before = predict(JOB, seen)
    assert before.mfu is not None
    measured = Measurement(
        gpu_model=name, placement=(1,), batch_per_gpu=4, precision="bf16", layout=Layout(),
        step_s=before.step_s * before.mfu / mfu,
    )  # fmt: skip
    gpus, shard = data.draw(st.integers(1, 8)), data.draw(st.sampled_from(["none", "zero1", "zero3"]))
    asked = replace(seen, placement=(gpus,), batch_per_gpu=sequences, layout=Layout(shard=shard))
    found = predict(replace(JOB, measurements=(measured,)), asked)
    assert found.mfu is not None
    assert found.low_s >= 0.999 * found.step_s * min(found.mfu, 1.0)
    assert found.low_s <= found.step_s <= found.high_s
