"""The sizes of a transformer that is trained on tokens, and what follows from them: parameters and FLOPs.

A decoder of equal blocks, each with attention and a feed-forward network, of which some may be mixtures of experts. A
linear layer is counted as its product alone: biases are too small to matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from ddlprof.base.typed import Interval
from ddlprof.recommender.errors import Checked, PredictionError

Positive = Annotated[int, Interval(1, 10**8)]
Natural = Annotated[int, Interval(0, 10**8)]
_BACKWARD = 2.0
"""The FLOPs of backward over those of forward: gradients of inputs and of weights."""


@dataclass(frozen=True)
class Transformer(Checked):
    """The sizes of a model. Widths are in elements, `seq` is in tokens."""

    layers: Positive
    hidden: Positive
    heads: Positive
    vocab: Positive
    seq: Positive
    ffn: Positive
    """The width of a dense feed-forward network."""
    kv_heads: Positive
    """Heads of keys and values; fewer than `heads` in grouped-query attention."""
    head_dim: Positive
    """The width of a head of queries and keys."""
    gated: bool = True
    """Whether the feed-forward network has a gate (SwiGLU): three products in place of two."""
    tied: bool = False
    """Whether the head uses the weights of the embedding."""
    causal: bool = True
    """Whether a token attends to those before it only: kernels then do half of the FLOPs of attention."""
    flash: bool = True
    """Whether attention is one fused kernel that does not keep its scores (FlashAttention)."""
    experts: Natural = 0
    """Experts of a layer; 0: all layers are dense."""
    experts_per_token: Natural = 0
    expert_ffn: Natural = 0
    """The width of one expert."""
    shared_experts: Natural = 0
    """Experts of a layer that see every token."""
    dense_layers: Natural = 0
    """Layers without experts in a model with experts, at its beginning."""
    q_lora: Natural = 0
    """Multi-head latent attention: the rank of queries; 0: they are not compressed."""
    kv_lora: Natural = 0
    """Multi-head latent attention: the rank of keys and values; 0: plain or grouped-query attention."""
    rope_dim: Natural = 0
    """Multi-head latent attention: the part of `head_dim` with positions, which all heads share."""
    value_dim: Natural = 0
    """The width of a head of values; 0: as `head_dim`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = {
            f"heads {self.heads} are not a multiple of kv_heads {self.kv_heads}": self.heads % self.kv_heads,
            "a model with experts needs experts_per_token and expert_ffn": (
                self.experts and not (self.experts_per_token and self.expert_ffn)
            ),
            f"experts_per_token {self.experts_per_token} is more than experts {self.experts}": (
                self.experts_per_token > self.experts
            ),
            f"dense_layers {self.dense_layers} are more than layers {self.layers}": self.dense_layers > self.layers,
            "expert_ffn, shared_experts and dense_layers are of a model with experts": (
                not self.experts and (self.expert_ffn or self.shared_experts or self.dense_layers)
            ),
            "q_lora and rope_dim are of latent attention, which has a kv_lora": (
                not self.kv_lora and (self.q_lora or self.rope_dim)
            ),
            f"rope_dim {self.rope_dim} is more than head_dim {self.head_dim}": self.rope_dim > self.head_dim,
        }
        for problem, wrong in problems.items():
            if wrong:
                raise PredictionError(f"transformer: {problem}")

    @property
    def of_value(self) -> int:
        """The width of a head of values."""
        return self.value_dim or self.head_dim

    @property
    def products(self) -> int:
        """The products of a feed-forward network."""
        return 3 if self.gated else 2

    def with_experts(self, first: int, layers: int) -> int:
        """How many of so many layers from `first` on, counted from 0, have a mixture of experts as their feed-forward
        network."""
        return max(first + layers - max(first, self.dense_layers), 0) if self.experts else 0

    @property
    def mixed_layers(self) -> int:
        """The layers with experts."""
        return self.with_experts(0, self.layers)

    @cached_property
    def attention_parameters(self) -> int:
        """The parameters of the products around attention in a layer."""
        keys = self.head_dim
        out = self.heads * self.of_value * self.hidden
        if not self.kv_lora:
            return out + self.hidden * (self.heads * keys + self.kv_heads * (keys + self.of_value))
        queries = self.q_lora * (self.hidden + self.heads * keys) if self.q_lora else self.hidden * self.heads * keys
        widened = self.kv_lora * self.heads * (keys - self.rope_dim + self.of_value)
        return out + queries + self.hidden * (self.kv_lora + self.rope_dim) + widened

    @cached_property
    def expert_parameters(self) -> int:
        return self.products * self.hidden * self.expert_ffn

    def dense_parameters(self, experts: bool) -> int:
        """The parameters of a layer with experts, or of one without: all but those of the experts; the shared ones are
        part of it."""
        norms = 2 * self.hidden
        if not experts:
            return norms + self.attention_parameters + self.products * self.hidden * self.ffn
        router = self.hidden * self.experts
        return norms + self.attention_parameters + router + self.shared_experts * self.expert_parameters

    def layer_parameters(self, experts: bool) -> int:
        """All parameters of a layer with experts, or of one without."""
        return self.dense_parameters(experts) + (self.experts * self.expert_parameters if experts else 0)

    @property
    def embedding_parameters(self) -> int:
        """The parameters of the embedding, or of the head."""
        return self.vocab * self.hidden

    @cached_property
    def parameters(self) -> int:
        ends, mixed = self.embedding_parameters * (1 if self.tied else 2) + self.hidden, self.mixed_layers
        return ends + (self.layers - mixed) * self.layer_parameters(False) + mixed * self.layer_parameters(True)

    @cached_property
    def active_parameters(self) -> int:
        """The parameters that a token is multiplied with, the head among them."""
        mixed = self.mixed_layers
        routed = self.dense_parameters(True) + self.experts_per_token * self.expert_parameters
        return self.embedding_parameters + (self.layers - mixed) * self.dense_parameters(False) + mixed * routed

    @property
    def _all_scores_flops(self) -> float:
        return 2.0 * self.seq * self.heads * (self.head_dim + self.of_value)

    @property
    def attention_flops(self) -> float:
        """FLOPs of the scores of one layer for one token, forward, as a kernel does them: half of them if causal."""
        return self._all_scores_flops / (2 if self.causal else 1)

    @property
    def flops_per_token(self) -> float:
        """Model FLOPs of forward and backward for a token, without recomputation and with all scores of attention,
        causal or not (Chowdhery et al., PaLM, 2022, appendix B): those of the MFU."""
        forward = 2.0 * self.active_parameters + self.layers * self._all_scores_flops
        return (1 + _BACKWARD) * forward
