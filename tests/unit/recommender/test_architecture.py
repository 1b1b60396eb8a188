"""Sizes of transformers: parameters as published, FLOPs by formula, and what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from ddlprof.recommender import PredictionError, transformer
from ddlprof.recommender.architecture import Transformer

LLAMA_8B: dict[str, Any] = {
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "vocab": 128256,
    "seq": 8192,
}
DEEPSEEK_V3 = {
    "layers": 61, "hidden": 7168, "heads": 128, "ffn": 18432, "vocab": 129280, "seq": 4096, "head_dim": 192,
    "q_lora": 1536, "kv_lora": 512, "rope_dim": 64, "value_dim": 128,
    "experts": 256, "experts_per_token": 8, "expert_ffn": 2048, "shared_experts": 1, "dense_layers": 3,
}  # fmt: skip
QWEN3_30B = {
    "layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "ffn": 6144, "vocab": 151936,
    "seq": 4096, "experts": 128, "experts_per_token": 8, "expert_ffn": 768,
}  # fmt: skip


def sizes(**numbers: Any) -> Transformer:
    found = transformer(**numbers).transformer
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("numbers", "billions", "active"),
    [
        (LLAMA_8B, 8.030, None),
        ({**LLAMA_8B, "layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672}, 70.554, None),
        (QWEN3_30B, 30.53, 3.3),
        (DEEPSEEK_V3, 671.0, 37.5),
    ],
)
def test_parameters_are_those_that_the_models_state(
    numbers: dict[str, Any], billions: float, active: float | None
) -> None:
    model = sizes(**numbers)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=2e-3)
    if active:  # the head counts, the embedding does not
        assert (model.active_parameters + model.embedding_parameters) / 1e9 == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"heads": 33, "kv_heads": None}, "hidden 4096 is not a multiple of heads 33: give head_dim"),
        ({"heads": 0, "kv_heads": None}, "heads 0"),
        ({"kv_heads": 5}, "heads 32 are not a multiple of kv_heads 5"),
        ({"experts": 8}, "needs experts_per_token and expert_ffn"),
        ({"experts": 2, "experts_per_token": 4, "expert_ffn": 8}, "experts_per_token 4 is more than experts 2"),
        ({"dense_layers": 40}, "dense_layers 40 are more than layers 32"),
        ({"shared_experts": 2}, "shared_experts and dense_layers are of a model with experts"),
        ({"dense_layers": 2}, "shared_experts and dense_layers are of a model with experts"),
        ({"q_lora": 64}, "of latent attention, which has a kv_lora"),
        ({"rope_dim": 64}, "of latent attention, which has a kv_lora"),
        ({"kv_lora": 512, "rope_dim": 256}, "rope_dim 256 is more than head_dim 128"),
        ({"layers": 0}, "layers"),
        ({"vocab": -1}, "vocab"),
    ],
)
def test_sizes_that_cannot_be_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(PredictionError, match=said):
        transformer(**{**LLAMA_8B, **change})


@pytest.mark.parametrize("dense", [0, 3, 32])
def test_layers_with_experts_are_counted_without_looking_at_each(dense: int) -> None:
    model = sizes(**LLAMA_8B, experts=8, experts_per_token=2, expert_ffn=64, dense_layers=dense)
    for first in range(33):
        for layers in range(33 - first):
            counted = sum(layer >= dense for layer in range(first, first + layers))
            assert model.with_experts(first, layers) == counted
    assert sizes(**LLAMA_8B).with_experts(0, 32) == 0
