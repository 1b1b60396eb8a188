"""A small network on images of digits' size, for `ddlprof fuse` on a device: in fp32, and under autocast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


class Autocast(nn.Module):
    """A network whose forward runs in bf16 where torch allows it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.net(x).float()


def digits_net() -> nn.Module:
    """Two convolutions and two layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 14 * 14, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def digits_autocast_net() -> nn.Module:
    """The same under autocast."""
    return Autocast(digits_net())


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Random images, the same in every epoch."""
    made = torch.Generator().manual_seed(0)
    for _ in range(40):
        yield torch.randn(64, 1, 28, 28, generator=made), torch.randint(10, (64,), generator=made)
