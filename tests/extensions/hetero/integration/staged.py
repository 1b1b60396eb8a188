"""Trains a small net on this rank's stage of a plan: `python staged.py PLAN FOLDER`; every number is compared with what
one process gets (test_staged.py)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddlprof.extensions.hetero import apply_stages

STEPS, BATCH = 3, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, self.back(torch.tanh(self.wide(self.norm(x)))))


class Net(nn.Module):
    """Tokens with a table of positions, which does not grow with the batch, and blocks with a way around them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(10, 8), nn.Embedding(5, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().double()


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randint(0, 10, (BATCH, 5), generator=generator), torch.randint(0, 4, (BATCH,), generator=generator))
        for _ in range(STEPS)
    ]


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def main(plan: str, folder: str) -> None:
    dist.init_process_group("gloo")
    stage = apply_stages(plan, net(), nn.functional.cross_entropy, batches()[0][0], "cpu")
    optimizer, losses = optimizer_of(stage.parameters()), []
    for tokens, targets in batches():
        optimizer.zero_grad()
        losses.append(stage.step(tokens, targets))
        optimizer.step()
    parameters = {name: p.flatten().tolist() for name, p in stage.module.named_parameters()}
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps({"losses": losses, "parameters": parameters}))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads outlive their group, and one that drops a tensor as the interpreter ends aborts torch


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
