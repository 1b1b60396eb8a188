# ecmwf/WeatherGenerator#1141: activations are recomputed though memory is free; cure: no gradient checkpointing
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(8)
        )
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if FAULT else block(x))
        return self.head(x)  # type: ignore[no-any-return]


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = Blocks()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(TensorDataset(torch.randn(3200, 128), torch.randint(0, 10, (3200,))), batch_size=32)
    clock = OwnClock()
    clock.train(model, optimizer, loader)
    clock.done()
