"""Settings of a target that a layout takes in their own words, and those that it cannot take."""

from __future__ import annotations

import pytest

from ddlprof.recommender import Layout, PredictionError, Predictor, Target, transformer

JOB = transformer(layers=8, hidden=1024, heads=8, kv_heads=8, ffn=4096, vocab=32000, seq=1024)


def predicted_s(**asked: object) -> float:
    target = Target(gpu_model="H100-SXM5-80GB", placement=(8,), precision="bf16", **asked)  # type: ignore[arg-type]
    return Predictor(JOB).predict(target).step_s


@pytest.mark.parametrize(
    ("checkpointing", "recompute"), [(False, "none"), (True, "full"), ("selective", "selective"), (None, "none")]
)
def test_checkpointing_is_what_the_layout_recomputes(checkpointing: object, recompute: str) -> None:
    by_name = predicted_s(layout=Layout(recompute=recompute))
    assert predicted_s(checkpointing=checkpointing) == by_name


@pytest.mark.parametrize("kind", ["lora", "qlora"])
def test_adapters_are_refused(kind: str) -> None:
    with pytest.raises(PredictionError, match="not with layouts"):
        predicted_s(**{kind: 8})
