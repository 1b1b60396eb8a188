"""A small decoder, and its step as it is counted from its tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddlprof.model.operators import StepOperators
from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step

WIDTH, INNER, CLASSES, TOKENS, LAYERS = 128, 256, 1000, 64, 6
BATCH = 2


class Block(nn.Module):
    """A feed-forward block with its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return result


class Decoder(nn.Module):
    """Tokens to the loss of the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def decoder() -> Decoder:
    """The decoder without memory."""
    with torch.device("meta"):
        return Decoder()


def counted_step(model: nn.Module, precision: str = "bf16", *, checkpointing: bool = False) -> StepOperators:
    """The step of the decoder, whatever was done to it before."""
    settings = StepSettings(BATCH, precision, checkpointing=checkpointing)
    return trace_step(model, lambda size: Inputs([torch.empty((size, TOKENS), dtype=torch.int64)], {}), settings)
