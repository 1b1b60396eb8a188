"""Decoders whose blocks do attention and feed-forward beside each other, on the meta device: StableLM Alpha, phi-1.5.

ddlprof features scripts.jobs.parallel_blocks:phi_1_5 --input int64:1024 --precision bf16 -o phi.json
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Attention and a feed-forward network on the same input, each behind a norm of its own or both behind one."""

    def __init__(self, hidden: int, heads: int, *, one_norm: bool) -> None:
        super().__init__()
        self.heads = heads
        self.first = nn.LayerNorm(hidden)
        self.second = None if one_norm else nn.LayerNorm(hidden)
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        normed = self.first(x)
        query, key, value = (
            part(normed).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        fed: torch.Tensor = self.down(functional.gelu(self.up(normed if self.second is None else self.second(x))))
        return x + attended + fed


class Decoder(nn.Module):
    """The model with its loss over the next tokens. Input: tokens of shape (batch, tokens)."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, heads: int, *, one_norm: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, one_norm=one_norm) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens.flatten())


def stablelm_3b() -> Decoder:
    """StableLM Alpha 3B."""
    with torch.device("meta"):
        return Decoder(50_688, 4096, 16, 32, one_norm=False).to(torch.bfloat16)


def phi_1_5() -> Decoder:
    """phi-1.5."""
    with torch.device("meta"):
        return Decoder(51_200, 2048, 24, 32, one_norm=True).to(torch.bfloat16)
