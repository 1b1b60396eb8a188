"""Llama-like transformers on the meta device, by size: for `ddlprof features` and for tables of large models.

ddlprof features scripts.jobs.llama:llama_70b --input int64:4096 --precision bf16 -o llama_70b.json
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Attention with grouped key-value heads (Ainslie et al., 2023), and a gated feed-forward network."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, intermediate: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, hidden // heads
        self.attention_norm, self.feed_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, kv_heads * self.head, bias=False)
        self.value = nn.Linear(hidden, kv_heads * self.head, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate = nn.Linear(hidden, intermediate, bias=False)
        self.up = nn.Linear(hidden, intermediate, bias=False)
        self.down = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        normed = self.attention_norm(x)
        query = self.query(normed).view(batch, tokens, self.heads, self.head).transpose(1, 2)
        key = self.key(normed).view(batch, tokens, self.kv_heads, self.head).transpose(1, 2)
        value = self.value(normed).view(batch, tokens, self.kv_heads, self.head).transpose(1, 2)
        repeats = self.heads // self.kv_heads
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        normed = self.feed_norm(x)
        fed: torch.Tensor = self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return x + fed


class Llama(nn.Module):
    """The model with its loss over the next tokens. Input: tokens of shape (batch, tokens)."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, kv_heads, intermediate) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def _on_meta(*sizes: int) -> Llama:
    with torch.device("meta"):
        return Llama(*sizes).to(torch.bfloat16)


def llama_1b() -> Llama:
    """1.34 billion parameters, as in nanotron's sweep."""
    return _on_meta(131_072, 2048, 16, 32, 32, 8192)


def llama_7b() -> Llama:
    """Llama-2 7B."""
    return _on_meta(32_000, 4096, 32, 32, 32, 11_008)


def llama_13b() -> Llama:
    """Llama-2 13B."""
    return _on_meta(32_000, 5120, 40, 40, 40, 13_824)


def internlm_7b() -> Llama:
    """InternLM 7B, of the same shape with a larger vocabulary."""
    return _on_meta(103_168, 4096, 32, 32, 32, 11_008)


def llama_70b() -> Llama:
    """Llama-2 70B."""
    return _on_meta(32_000, 8192, 80, 64, 8, 28_672)
