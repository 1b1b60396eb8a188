"""Decoders as Llama, Qwen and GPT-2 are, in plain torch, for `ddlprof features MODULE:FACTORY`."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Sizes(NamedTuple):
    """The sizes of a decoder."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    words: int


class Layer(nn.Module):
    """Grouped-query attention with rotary positions, and a gated feed-forward network."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.of_head = sizes.width // sizes.heads
        kv_width = sizes.kv_heads * self.of_head
        self.norm_1, self.norm_2 = nn.RMSNorm(sizes.width), nn.RMSNorm(sizes.width)
        self.q_proj, self.o_proj = (nn.Linear(sizes.width, sizes.width, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(sizes.width, kv_width, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(sizes.width, sizes.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        of_x = self.norm_1(x)
        q, k, v = (f(of_x).unflatten(-1, (-1, self.of_head)).transpose(1, 2) for f in self.projections())
        q, k = (_turned(each, cosine, sine) for each in (q, k))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(mixed.transpose(1, 2).flatten(2))
        of_x = self.norm_2(x)
        result: Tensor = x + self.down(functional.silu(self.gate(of_x)) * self.up(of_x))
        return result

    def projections(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        return self.q_proj, self.k_proj, self.v_proj


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Decoder(nn.Module):
    """Tokens to the loss of the next ones, each layer computed again in backward."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.words = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm, self.head = nn.RMSNorm(sizes.width), nn.Linear(sizes.width, sizes.words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        of_head = self.sizes.width // self.sizes.heads
        cosine, sine = (torch.ones(tokens.shape[1], of_head, dtype=x.dtype, device=x.device) for _ in range(2))
        for layer in self.layers:
            x = checkpoint(layer, x, cosine, sine, use_reentrant=False)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens.flatten())


def llama_8b() -> nn.Module:
    """Llama 3.1 8B."""
    return Decoder(Sizes(32, 4096, 14336, 32, 8, 128256))


def qwen_14b() -> nn.Module:
    """Qwen 14B of 2023."""
    return Decoder(Sizes(40, 5120, 13696, 40, 40, 152064))


class _NextToken(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.cross_entropy(self.net(tokens).flatten(0, 1).float(), tokens.flatten())


def gpt2_124m() -> nn.Module:
    """GPT-2 of 124 million parameters, with tied embeddings and a padded vocabulary."""
    net = import_module("scripts.jobs.gpu.models").Gpt(length=1024)
    net.head.weight = net.words.weight
    return _NextToken(net)
