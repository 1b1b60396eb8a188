"""The sizes of a transformer, read from the fields of its Hugging Face `config.json`; transformers is not needed.

Families of models name the same size differently. What decides is which fields there are, not a list of all families.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.errors import PredictionError

USUAL_TOKENS = 4096
"""The tokens of a sample where none were asked for: models are trained on shorter sequences than they can take."""
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim"),
    "positions": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
    "experts": ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k"),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "dense_layers": ("first_k_dense_replace", "moe_layer_start_index"),
}
"""The fields in which configs have each size, the usual one first."""
_ENCODERS = (
    "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "mpnet", "modernbert", "roberta",
    "xlm-roberta",
)  # fmt: skip
_GATED_WITHOUT_RMS = ("cohere", "cohere2", "modernbert", "olmo", "stablelm")
"""Families with a gate in their feed-forward networks whose norms are no RMS norms; all others with a gate have them.
"""
_BY_HAND = "name its sizes: ddlprof features transformer --layers N --hidden N ..."


def sizes_of_config(config: Mapping[str, Any], seq: int | None = None) -> Transformer:
    """The sizes of the model with this config, trained on samples of `seq` tokens (None: `USUAL_TOKENS`, or fewer if
    the model takes no more).

    The text part counts, if the model has others. Raises `PredictionError` for a model that is no stack of equal blocks
    on tokens, and for sizes that are missing or contradict each other.
    """
    fields = config.get("text_config") if isinstance(config.get("text_config"), Mapping) else config
    assert isinstance(fields, Mapping)
    kind = str(fields.get("model_type") or config.get("model_type") or "model")
    if fields.get("is_encoder_decoder"):
        raise PredictionError(f"config: {kind} has an encoder and a decoder, which has no layout here; {_BY_HAND}")
    heads, hidden = _needed(fields, "heads", kind), _needed(fields, "hidden", kind)
    more: dict[str, Any] = {"head_dim": _number(fields, "head_dim") or hidden // heads}
    more |= {**_experts(fields, kind), **_latent(fields)}
    positions = _first(fields, "positions")
    return Transformer(
        layers=_needed(fields, "layers", kind),
        hidden=hidden,
        heads=heads,
        vocab=_needed(fields, "vocab", kind),
        seq=seq or min(positions or USUAL_TOKENS, USUAL_TOKENS),
        ffn=_first(fields, "ffn") or 4 * hidden,
        kv_heads=_kv_heads(fields, heads),
        gated="rms_norm_eps" in fields or kind in _GATED_WITHOUT_RMS,
        tied=bool(fields.get("tie_word_embeddings", config.get("tie_word_embeddings", True))),
        causal=kind not in _ENCODERS or bool(fields.get("is_decoder")),
        **more,
    )


def _experts(fields: Mapping[str, Any], kind: str) -> dict[str, int]:
    """The sizes of mixtures of experts; none where all layers are dense."""
    experts = _first(fields, "experts") or 0
    if experts < 2:
        return {}
    width = _number(fields, "moe_intermediate_size") or _needed(fields, "ffn", kind)
    shared = _first(fields, "shared_experts") or 0
    if not shared:
        shared = -(-(_number(fields, "shared_expert_intermediate_size") or 0) // width)
    dense = _first(fields, "dense_layers") or 0
    without = fields.get("mlp_only_layers") or []
    if without:
        dense = len(without)
    every = max(_number(fields, name) or 1 for name in ("decoder_sparse_step", "moe_layer_freq"))
    if every > 1 or sorted(without) != list(range(len(without))):
        raise PredictionError(f"config: {kind} has experts in some layers between others without; {_BY_HAND}")
    return {
        "experts": experts,
        "experts_per_token": _needed(fields, "experts_per_token", kind),
        "expert_ffn": width,
        "shared_experts": shared,
        "dense_layers": dense,
    }


def _latent(fields: Mapping[str, Any]) -> dict[str, int]:
    """The ranks and widths of multi-head latent attention; none where attention is another one."""
    rank = _number(fields, "kv_lora_rank")
    if not rank:
        return {}
    rope = _number(fields, "qk_rope_head_dim") or 0
    return {
        "head_dim": (_number(fields, "qk_nope_head_dim") or 0) + rope,
        "kv_lora": rank,
        "q_lora": _number(fields, "q_lora_rank") or 0,
        "rope_dim": rope,
        "value_dim": _number(fields, "v_head_dim") or 0,
    }


def _kv_heads(fields: Mapping[str, Any], heads: int) -> int:
    """Heads of keys and values; Falcon says `multi_query` where there is one, beside a number that does not hold."""
    if fields.get("multi_query") and not fields.get("new_decoder_architecture"):
        return 1
    return _first(fields, "kv_heads") or heads


def _first(fields: Mapping[str, Any], size: str) -> int | None:
    return next((number for name in _NAMES[size] if (number := _number(fields, name))), None)


def _needed(fields: Mapping[str, Any], size: str, kind: str) -> int:
    found = _first(fields, size)
    if found is None:
        raise PredictionError(f"config: {kind} has none of {', '.join(_NAMES[size])}; {_BY_HAND}")
    return found


def _number(fields: Mapping[str, Any], name: str) -> int | None:
    """The whole number in a field; None: it is missing, or null. Raises `PredictionError` for anything else."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PredictionError(f"config: {name} is {str(value)[:40]!r}, not a whole number; {_BY_HAND}")
    return value
