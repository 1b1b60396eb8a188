"""A mixture of experts, one on each rank, with a router whose choices are known: `python experts.py FULLEST`.

Of the tokens of each rank, `SHARE` times the mean go to the expert of rank `FULLEST`, the others to all others equally.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS = 14
SHARE = 1.5
WIDTH = 16
TOKENS_FOR_EACH = 60
"""The tokens of a rank for each rank: in the mean so many go to an expert."""


class Exchange(torch.autograd.Function):
    """An all-to-all of rows; its backward is the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        ctx.sizes = sent, received
        out = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        sent, received = ctx.sizes
        back = gradients[0].new_empty(sum(sent), gradients[0].shape[1])
        dist.all_to_all_single(back, gradients[0].contiguous(), sent, received)
        return back, None, None


def tokens_to(ranks: int, fullest: int) -> list[int]:
    """How many of a rank's tokens go to each expert."""
    most = round(SHARE * TOKENS_FOR_EACH)
    others = (ranks * TOKENS_FOR_EACH - most) // (ranks - 1)
    return [most if rank == fullest else others for rank in range(ranks)]


class Mixture(nn.Module):
    def __init__(self, sent: list[int]) -> None:
        super().__init__()
        self.expert = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.sent, self.received = sent, [sent[dist.get_rank()]] * dist.get_world_size()

    def forward(self, x: torch.Tensor) -> Any:
        there = self.expert(Exchange.apply(x, self.sent, self.received))
        return Exchange.apply(there, self.received, self.sent)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    sent = tokens_to(dist.get_world_size(), int(sys.argv[1]))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Mixture(sent), Mixture(sent))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(torch.randn(sum(sent), WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
