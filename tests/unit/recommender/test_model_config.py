"""Sizes read from the configs of published models, checked by the parameters that their makers name."""

from __future__ import annotations

from typing import Any

import pytest

from ddlprof.recommender import PredictionError
from ddlprof.recommender.model_config import sizes_of_config

_OWN_HEAD: dict[str, Any] = {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}
_LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
LLAMA_8B: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    **_OWN_HEAD,
}  # fmt: skip
LLAMA_405B = {
    **LLAMA_8B, "hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128, "num_hidden_layers": 126,
}  # fmt: skip
MIXTRAL = {
    **LLAMA_8B, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
QWEN3_30B: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 48, "num_experts": 128,
    "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, **_OWN_HEAD,
}  # fmt: skip
QWEN_MOE: dict[str, Any] = {
    "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
    "num_hidden_layers": 24, "num_experts": 60, "num_experts_per_tok": 4, "vocab_size": 151936, **_OWN_HEAD,
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61,
    "q_lora_rank": 1536, "vocab_size": 129280, **_LATENT, **_OWN_HEAD,
}  # fmt: skip
DEEPSEEK_V2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
    "num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 27, "q_lora_rank": None,
    "vocab_size": 102400, **_LATENT, **_OWN_HEAD,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257, "n_positions": 1024,
    "n_inner": None,
}  # fmt: skip
NEOX: dict[str, Any] = {
    "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64,
    "num_hidden_layers": 44, "vocab_size": 50432, "tie_word_embeddings": False,
}  # fmt: skip
BERT: dict[str, Any] = {
    "model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
    "num_hidden_layers": 12, "vocab_size": 30522, "max_position_embeddings": 512,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_attention_heads": 16,
    "num_key_value_heads": 16, "head_dim": 256, "num_hidden_layers": 28, "vocab_size": 256000, "rms_norm_eps": 1e-6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        (LLAMA_8B, 8.03, None), (LLAMA_405B, 405.9, None), (MIXTRAL, 46.7, 12.9), (QWEN3_30B, 30.5, 3.3),
        (QWEN_MOE, 14.3, 2.7), (DEEPSEEK_V3, 671.0, 37.6), (DEEPSEEK_V2_LITE, 15.7, 2.66), (GPT2, 0.124, None),
        (NEOX, 20.6, None), (BERT, 0.109, None), (GEMMA, 8.54, None),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)  # fmt: skip
def test_parameters_are_those_that_the_makers_name(
    config: dict[str, Any], billions: float, active: float | None
) -> None:
    sizes = sizes_of_config(config)
    assert sizes.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    if active is not None:  # makers count the embedding, with which no token is multiplied
        embedding = 0 if sizes.tied else sizes.embedding_parameters
        assert (sizes.active_parameters + embedding) / 1e9 == pytest.approx(active, rel=0.02)


def test_what_kind_of_model() -> None:
    gpt2, bert, llama = (sizes_of_config(each) for each in (GPT2, BERT, LLAMA_8B))
    assert [(each.gated, each.tied, each.causal) for each in (gpt2, bert, llama)] == [
        (False, True, True),
        (False, True, False),
        (True, False, True),
    ]
    assert gpt2.ffn == 4 * 768
    latent = sizes_of_config(DEEPSEEK_V3)
    assert (latent.head_dim, latent.rope_dim, latent.value_dim, latent.q_lora) == (192, 64, 128, 1536)
    assert sizes_of_config({**BERT, "is_decoder": True}).causal
    assert sizes_of_config({**GPT2, "multi_query": True}).kv_heads == 1


def test_the_text_part_of_a_model_of_images_and_text() -> None:
    assert sizes_of_config({"model_type": "two", "text_config": GEMMA}) == sizes_of_config(GEMMA)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**BERT, "is_encoder_decoder": True}, "bert has an encoder and a decoder"),
        ({key: value for key, value in BERT.items() if key != "vocab_size"}, "bert has none of vocab_size"),
        ({**BERT, "num_hidden_layers": "twelve"}, "num_hidden_layers is 'twelve', not a whole number"),
        ({**QWEN3_30B, "decoder_sparse_step": 2}, "experts in some layers between others"),
        ({**QWEN3_30B, "mlp_only_layers": [5]}, "experts in some layers between others"),
        ({**LLAMA_8B, "num_key_value_heads": 5}, "heads 32 are not a multiple of kv_heads 5"),
    ],
)
def test_what_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(PredictionError, match=message):
        sizes_of_config(config)


def test_first_layers_without_experts_may_be_listed() -> None:
    assert sizes_of_config({**QWEN3_30B, "mlp_only_layers": [0, 1]}).dense_layers == 2
