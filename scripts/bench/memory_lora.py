"""The memory of LoRA that ddlprof expects of Llama 2, against what LitGPT published for one A100 (layouts/litgpt.csv).

The length of the samples is not published, so two batches are compared: what a sample adds, and what is left without
any, which is the frozen weights.

    python -m scripts.bench.memory_lora ../shared/data/layouts/litgpt.csv
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step
from recommender import Workload
from recommender.compute.memory import JobMemory

_SIZES = {7e9: (32, 4096, 32, 11008), 13e9: (40, 5120, 40, 13824)}
"""Layers, width, heads and width of the feed-forward layer by the parameters of the source."""
_VOCABULARY, _RANK, _TOKENS = 32000, 8, 512


class Lora(nn.Module):
    """A frozen layer and two thin ones that are trained beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, _RANK, bias=False), nn.Linear(_RANK, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Both together."""
        added: Tensor = self.base(x) + 2 * self.up(self.down(F.dropout(x, 0.05, self.training)))
        return added


class Block(nn.Module):
    """A block of Llama with LoRA on queries and values."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = (nn.RMSNorm(width).requires_grad_(False) for _ in range(2))
        self.q, self.v = Lora(width, width), Lora(width, width)
        self.k, self.out = (nn.Linear(width, width, bias=False).requires_grad_(False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False).requires_grad_(False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and the feed-forward layer, each added to what comes in."""
        batch, tokens, width = x.shape
        normed = self.first(x)
        q, k, v = (
            part(normed).view(batch, tokens, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(found.reshape(batch, tokens, width))
        normed = self.second(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Returns its loss."""

    def __init__(self, layers: int, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.table = nn.Embedding(_VOCABULARY, width).requires_grad_(False)
        self.blocks = nn.ModuleList(Block(width, heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width).requires_grad_(False)
        self.head = nn.Linear(width, _VOCABULARY, bias=False).requires_grad_(False)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        """The loss of the next tokens."""
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return {"loss": F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), tokens.flatten())}


def expected(parameters: float, batch: int) -> float:
    """The bytes at a batch of samples of `_TOKENS` tokens."""
    with torch.device("meta"):
        model = Llama(*_SIZES[parameters])

    def inputs(size: int) -> Inputs:
        return Inputs([torch.empty((size, _TOKENS), dtype=torch.int64)], {})

    need = JobMemory(Workload("", step=trace_step(model, inputs, StepSettings(1, "bf16")))).need(batch, 1)
    assert need is not None
    return need.bytes - need.context


def main(path: str) -> None:
    """Prints the table."""
    rows = csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines())
    measured = {
        (float(row["params"]), int(row["micro_batch"])): 1e9 * float(row["memory_gb"])
        for row in rows
        if row["model"] == "Llama 2" and row["precision"] == "bf16 None" and row["memory_gb"]
        and row["section"] == "Finetuning with LoRA on 1 GPU"
    }  # fmt: skip
    print("| model | batch | measured GB | expected GB | tokens of a sample |")
    print("|---|---:|---:|---:|---:|")
    first, second = measured[7e9, 1], measured[7e9, 2]
    one, two = expected(7e9, 1), expected(7e9, 2)
    tokens = _TOKENS * (second - first) / (two - one)  # what explains a sample's memory
    for (parameters, batch), found in measured.items():
        each = expected(parameters, batch)
        alone = 2 * each - expected(parameters, 2 * batch)
        guess = alone + (each - alone) * tokens / _TOKENS
        print(f"| Llama 2, {parameters / 1e9:.0f}B | {batch} | {found / 1e9:.2f} | {guess / 1e9:.2f} | {tokens:.0f} |")


if __name__ == "__main__":
    main(sys.argv[1])
