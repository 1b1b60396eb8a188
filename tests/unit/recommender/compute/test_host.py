"""How fast hosts launch operators: what decides, and what it does to a step and its interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof import instance_catalog
from ddlprof.instance_catalog import Reached
from ddlprof.model.operators import Operator, StepOperators
from ddlprof.recommender import Estimate, Measurement, Predictor, Target, Workload
from ddlprof.recommender.compute.correction import FEATURES, ComputeCorrection
from ddlprof.recommender.compute.host import CHECKPOINT_OPERATORS, TYPICAL, TYPICAL_LAUNCH_US, host_of
from ddlprof.recommender.compute.micro_batch import ComputeModel, shipped
from ddlprof.recommender.compute.operator_time import OperatorModel
from ddlprof.recommender.compute.what_if import as_asked

CATALOG = instance_catalog.load()
H100 = CATALOG.gpu("H100")
MILAN, BROADWELL = "AMD EPYC 7R13 (Milan)", "Intel Xeon E5-2686 v4 (Broadwell)"
PROBE = Reached("AMD EPYC 7R13 Processor", fp32_tflops=1.0, memory_gb_s=10.0, launch_us=8.0, measured_at="2026-11-28")


def job(elements: int) -> Workload:
    """Two hundred elementwise operators."""
    row = Operator("elementwise", "forward", "add", "fp32", (elements,), 0, 12.0 * elements, 1, 200, grows=0)
    return Workload("job", step=StepOperators(8, "fp32", (row,)))


def predicted(elements: int, launch_us: float | None = None, **machine: str) -> Estimate:
    target = Target(**(machine or {"gpu_model": "H100"}), batch_per_gpu=8, host_launch_us=launch_us)  # type: ignore[arg-type]
    return Predictor(job(elements)).predict(target)


def above(found: Estimate) -> float:
    return found.high_s / found.step_s


def test_without_any_knowledge_the_host_is_typical_and_may_be_slower() -> None:
    assert host_of(CATALOG, H100, None, None) == TYPICAL
    assert TYPICAL.slower > 1


def test_what_is_asked_for_decides_before_a_probe_of_the_gpu_and_that_before_any_other() -> None:
    of_gpu = replace(PROBE, gpu_model=H100.gpu_model, launch_us=12.0)
    known = replace(CATALOG, reached=(PROBE, of_gpu))
    assert host_of(known, H100, MILAN, 50.0).launch_us == 50.0
    assert host_of(known, H100, MILAN, None).launch_us == 12.0
    assert host_of(known, H100, MILAN, None).slower == 1
    elsewhere = host_of(known, CATALOG.gpu("L40S"), MILAN, None)
    assert 1 < elsewhere.slower < TYPICAL.slower


def test_a_slower_processor_takes_longer_by_what_its_thread_is_slower() -> None:
    for catalog in (CATALOG, replace(CATALOG, reached=(PROBE,))):
        fast, slow = (host_of(catalog, H100, cpu, None).launch_us for cpu in (MILAN, BROADWELL))
        assert slow / fast == pytest.approx((1.15 * 3.6) / (0.85 * 2.6))


def test_a_probe_on_any_processor_tells_how_slow_its_software_is() -> None:
    fast, slow = (replace(CATALOG, reached=(replace(PROBE, launch_us=us),)) for us in (8.0, 16.0))
    assert host_of(slow, H100, None, None).launch_us == pytest.approx(2 * host_of(fast, H100, None, None).launch_us)


def on_cpu(launch_us: float | None, cpu_model: str | None = MILAN) -> Measurement:
    """A run on a processor."""
    return Measurement(placement=(1,), batch_per_gpu=8, step_s=1.0, launch_us=launch_us, cpu_model=cpu_model)


def test_a_run_anywhere_tells_how_slow_its_software_is() -> None:
    def us(timed: float, here: str | None = MILAN, there: str | None = None) -> float:
        return host_of(CATALOG, H100, there, None, [on_cpu(timed, here)]).launch_us

    assert us(5.2) == pytest.approx(2 * us(2.6))
    assert us(2.6, BROADWELL) < us(2.6, MILAN)  # what a slow thread does in the same time is less work elsewhere
    assert us(2.6, MILAN, BROADWELL) / us(2.6, MILAN, MILAN) == pytest.approx((1.15 * 3.6) / (0.85 * 2.6))
    found = host_of(replace(CATALOG, reached=(PROBE,)), H100, MILAN, None, [on_cpu(None), on_cpu(5.2)])
    assert found.source == f"from the run on {MILAN}"
    assert found.slower == host_of(replace(CATALOG, reached=(PROBE,)), H100, MILAN, None).slower


def test_a_thread_of_unknown_speed_is_no_reason_to_expect_a_fast_host() -> None:
    for processor in ("AMD EPYC", None):
        fast, slow = (host_of(CATALOG, H100, None, None, [on_cpu(us, processor)]) for us in (1.0, 5.2))
        assert (fast.launch_us, fast.slower) == (TYPICAL_LAUNCH_US, TYPICAL.slower)
        assert slow.launch_us == pytest.approx(2 * TYPICAL_LAUNCH_US)
        assert slow.slower == TYPICAL.slower


def test_the_prediction_of_a_job_rests_on_the_host_of_its_run() -> None:
    fast, slow = (
        Predictor(replace(job(1000), measurements=[on_cpu(us)])).predict(Target(gpu_model="H100", batch_per_gpu=8))
        for us in (2.6, 10.4)
    )
    assert slow.times.compute_s == pytest.approx(4 * fast.times.compute_s, rel=0.2)
    assert any("from the run on" in line for line in slow.basis)


def test_a_step_of_small_operators_takes_as_long_as_its_host() -> None:
    small = predicted(1000, 20.0), predicted(1000, 40.0)
    assert small[1].step_s / small[0].step_s == pytest.approx(2.0, rel=0.2)
    large = predicted(10**9, 20.0), predicted(10**9, 40.0)
    assert large[1].step_s == pytest.approx(large[0].step_s, rel=0.01)


def test_the_interval_is_longer_above_where_the_host_is_not_known_and_decides() -> None:
    assert above(predicted(1000)) > 1.1 * above(predicted(1000, TYPICAL_LAUNCH_US))
    assert predicted(1000).low_s == predicted(1000, TYPICAL_LAUNCH_US).low_s
    assert above(predicted(10**9)) == pytest.approx(above(predicted(10**9, TYPICAL_LAUNCH_US)), rel=0.01)


def test_where_runs_of_ones_own_taught_the_gpu_the_host_is_part_of_it() -> None:
    zero, wide = (0.0,) * len(FEATURES), (50.0,) * len(FEATURES)
    learned = ComputeCorrection(H100.gpu_model, "fp32", "operators", 0.0, zero, zero, zero, wide, sd=0.1, jobs=7)
    for corrections, known in (((), False), ((learned,), True)):
        model = ComputeModel(job(1000), replace(shipped(), corrections=corrections))
        assert (model.estimate(H100, 8, "fp32").slower == 1) == known


def test_a_cast_of_autocast_takes_the_host_half_as_long_as_what_python_calls() -> None:
    def step_s(name: str) -> float:
        row = Operator("copy", "forward", name, "fp32", (1000,), 0, 6.0e3, 1, 1000)
        work = Workload("job", step=StepOperators(8, "fp32", (row,)))
        return Predictor(work).predict(Target(gpu_model="H100", batch_per_gpu=8)).step_s

    assert step_s("_to_copy") == pytest.approx(step_s("copy") / 2, rel=0.1)


def test_what_checkpointing_computes_again_takes_the_host_as_long_as_in_forward_and_each_block_more() -> None:
    add = job(8).step.operators[0]  # type: ignore[union-attr]
    layer = Operator("product", "forward", "mm", "fp32", (1, 8, 8, 8), 1024, 768, 1, 10, grows=1, fixed_bytes=256)
    plain = StepOperators(8, "fp32", (layer, add, replace(add, phase="backward", name="mul")), optimizer="sgd")
    model = OperatorModel.shipped()

    def more_s(compiled: bool) -> float:
        found = [
            model.step(as_asked(plain, batch=8, compiled=compiled, checkpointing=asked), H100, host=TYPICAL)
            for asked in (True, False)
        ]
        return found[0].backward_s - found[1].backward_s

    assert more_s(False) == pytest.approx((add.count + 10 * CHECKPOINT_OPERATORS) * TYPICAL_LAUNCH_US * 1e-6, rel=0.05)
    assert more_s(True) < add.count * TYPICAL_LAUNCH_US * 1e-6


def test_the_update_of_many_tensors_keeps_the_host_busy() -> None:
    def step_s(tensors: int) -> float:
        update = Operator("optimizer", "optimizer", "_foreach_adamw_", "fp32", (10**6, tensors), 0, 2.8e7, 20, 1)
        work = Workload("job", step=StepOperators(8, "fp32", (*job(1000).step.operators, update)))  # type: ignore[union-attr]
        return Predictor(work).predict(Target(gpu_model="H100", batch_per_gpu=8)).step_s

    assert step_s(400) - step_s(2) == pytest.approx(398 * 0.4 * TYPICAL_LAUNCH_US * 1e-6, rel=0.3)


def test_instance_types_differ_by_their_processor() -> None:
    of_milan = predicted(1000, instance_type="p5.48xlarge")
    of_cascade_lake = predicted(1000, instance_type="p4d.24xlarge")
    assert of_cascade_lake.step_s > 1.2 * of_milan.step_s
