"""What can be asked of a job, what differs from its measurement, and which GPUs lack a precision."""

from __future__ import annotations

import pytest

from ddlprof.instance_catalog import load
from ddlprof.model.operators import StepOperators
from ddlprof.recommender import Measurement, PredictionError, Settings, Target, Workload, predict
from ddlprof.recommender.settings import check_settings, lacking, measured_settings

MEASURED = Workload(
    "net", gradient_bytes=1e8, measurements=[Measurement("p3.2xlarge", placement=(1,), batch_per_gpu=8, step_s=0.2)]
)


def test_only_what_differs_from_the_measurement_is_a_difference() -> None:
    asked = Settings(precision="bf16", strategy="ddp", grad_accum=4, compiled=True)
    assert asked.differences(MEASURED) == {
        "precision": ("fp32", "bf16"),
        "grad_accum": (1, 4),
        "compiled": (None, True),
    }


def test_adapters_and_selective_checkpointing_can_be_asked_for() -> None:
    asked = Settings(checkpointing="selective", qlora=8)
    assert asked.given == {"checkpointing": "selective", "qlora": 8}
    assert asked.differences(MEASURED) == {"checkpointing": (None, "selective"), "qlora": (None, 8)}
    with pytest.raises(PredictionError, match="checkpointing"):
        Settings(checkpointing="sometimes")  # type: ignore[arg-type]
    with pytest.raises(PredictionError, match="lora"):
        Settings(lora=0)
    with pytest.raises(PredictionError, match="ask for one of them"):
        check_settings(Settings(lora=8, qlora=8))
    with pytest.raises(PredictionError, match="ask for lora or qlora, too"):
        check_settings(Settings(lora_targets="q_proj"))
    with pytest.raises(PredictionError, match="precision 'bf8' is not known"):
        check_settings(Settings(lora=8, lora_precision="bf8"))


def test_other_spellings_are_no_difference() -> None:
    amp = Measurement("p3.2xlarge", placement=(1,), batch_per_gpu=8, step_s=0.2, precision="16-mixed")
    step = StepOperators(batch=8, precision="amp-fp16", operators=(), optimizer="AdamW")
    job = Workload("net", measurements=[amp], step=step)
    assert Settings(precision="amp-fp16", optimizer="adamw").differences(job) == {}
    assert set(Settings(precision="amp-bf16", optimizer="adam").differences(job)) == {"precision", "optimizer"}


def test_a_model_that_nobody_measured_trains_as_its_operators_were_counted() -> None:
    counted = StepOperators(batch=4, precision="amp-bf16", operators=(), optimizer="adamw")
    known = measured_settings(Workload("net", step=counted))
    assert (known.precision, known.optimizer, known.strategy, known.grad_accum) == ("amp-bf16", "adamw", "ddp", 1)
    assert known.checkpointing is known.compiled is False


@pytest.mark.parametrize(
    ("gpu", "precision", "what"),
    [("T4", "bf16", "no bf16: T4 has none in hardware"), ("V100", "amp-bf16", "no bf16: V1"),
     ("T4", "tf32", "no tf32"),
     ("A100", "fp8", "no fp8: A100"), ("L4", "fp8", None), ("H100", "fp8", None), ("A100", "tf32", None),
     ("K80", "amp", None), ("A100", "amp-bf16", None), ("T4", "bf16-mixed", "no bf16"),
     ("MI300X", "fp8", None), ("MI300X", "tf32", None), ("MI355X", "tf32", "no tf32"), ("MI250X", "fp8", "no fp8"),
     ("MI250X", "bf16", None)],
)  # fmt: skip
def test_precisions_that_a_gpu_lacks(gpu: str, precision: str, what: str | None) -> None:
    found = lacking(load(None).gpu(gpu), precision)
    assert found is None if what is None else (found or "").startswith(what)


@pytest.mark.parametrize(
    ("target", "what"),
    [(Target("p3.2xlarge", precision="bf16"), "no bf16: V100-SXM2-16GB has none in hardware; choose another precision"),
     (Target("p3.2xlarge", precision="int3"), "precision 'int3' is not known; one of: fp32, tf32, bf16, "),
     (Target("p3.2xlarge", strategy="pp"), "strategy 'pp' is not known; one of: ddp, fsdp, zero"),
     (Target("p3.2xlarge", optimizer="adamx"), "optimizer 'adamx' is not known; one of: none, sgd, ")],
)  # fmt: skip
def test_what_cannot_be_asked_of_a_target(target: Target, what: str) -> None:
    with pytest.raises(PredictionError) as caught:
        predict(MEASURED, target)
    assert str(caught.value).startswith(what)
