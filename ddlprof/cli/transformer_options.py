"""The options of `ddlprof features transformer`: the sizes of a transformer by hand."""

from __future__ import annotations

from typing import Annotated, Any

from ddlprof.cli.panels import panel

NAMES = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "experts_per_token", "expert_ffn",
    "shared_experts", "dense_layers", "q_lora", "kv_lora", "rope_dim", "value_dim", "gated", "tied", "causal", "flash",
    "software",
)  # fmt: skip
"""The arguments of `ddlprof.recommender.transformer` that are options, in the order of `features`."""
_size = panel("Sizes, for `features transformer`")


def _number(help: str, least: int = 1) -> Any:
    return _size(metavar="N", min=least, help=help)


Layers = Annotated[int | None, _number("Layers.")]
Hidden = Annotated[int | None, _number("Width of the residual stream.")]
Heads = Annotated[int | None, _number("Heads of attention.")]
KvHeads = Annotated[int | None, _number("Heads of keys and values [as --heads].")]
HeadDim = Annotated[int | None, _number("Width of a head of queries and keys [--hidden / --heads].")]
Ffn = Annotated[int | None, _number("Width of a dense feed-forward network [4 x --hidden].")]
Vocab = Annotated[int | None, _number("Tokens of the vocabulary.")]
Experts = Annotated[int | None, _number("Experts of a layer [none].")]
ExpertsPerToken = Annotated[int | None, _number("Experts that a token goes to.")]
ExpertFfn = Annotated[int | None, _number("Width of one expert.")]
SharedExperts = Annotated[int | None, _number("Experts of a layer that see every token [0].", 0)]
DenseLayers = Annotated[int | None, _number("First layers, which have no experts [0].", 0)]
QLora = Annotated[int | None, _number("Latent attention (MLA): rank of queries [not compressed].", 0)]
KvLora = Annotated[int | None, _number("Latent attention (MLA): rank of keys and values.")]
RopeDim = Annotated[int | None, _number("Latent attention (MLA): part of --head-dim with positions.")]
ValueDim = Annotated[int | None, _number("Width of a head of values [as --head-dim].")]
Gated = Annotated[
    bool | None, _size("--gated/--no-gated", help="Whether feed-forward networks have a gate, as SwiGLU has [yes].")
]
Tied = Annotated[
    bool | None, _size("--tied/--no-tied", help="Whether the head uses the weights of the embedding [no].")
]
Causal = Annotated[
    bool | None, _size("--causal/--no-causal", help="Whether a token attends only to those before it [yes].")
]
Flash = Annotated[
    bool | None, _size("--flash/--no-flash", help="Whether attention is one fused kernel (FlashAttention) [yes].")
]
Software = Annotated[
    str | None,
    _size(metavar="NAME", help="What will train it: megatron, nanotron, torchtitan, ...; it narrows predictions."),
]
