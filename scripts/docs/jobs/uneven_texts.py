"""Trains a small transformer on texts of uneven length, each rank on its own shard; rank 1 has the longer texts.

Part of the case study docs/cases/late-rank.md. With --mixed, every rank gets texts of all lengths.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

SHORT, LONG = 32, 128


class Classifier(nn.Module):
    """Embeds tokens, attends, and tells one of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encode(self.embed(tokens)).mean(1))
        return logits


def length(step: int, mixed: bool) -> int:
    """The number of tokens in the texts of this step and rank."""
    if mixed:
        return LONG if step % 2 else SHORT
    return LONG if dist.get_rank() == 1 else SHORT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mixed", action="store_true", help="give every rank texts of all lengths")
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        tokens = torch.randint(1000, (16, length(step, args.mixed)))
        optimizer.zero_grad()
        F.cross_entropy(model(tokens), tokens[:, 0] % 10).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
