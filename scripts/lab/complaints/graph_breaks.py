# sgl-project/SpecForge#222 NVIDIA/TransformerEngine#705: torch.compile breaks its graph in each layer; cure: no .item()
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.linear(x))
        largest = x.abs().amax()
        if FAULT:
            return x / max(largest.item() / 100, 1.0)
        return x / (largest / 100).clamp(min=1.0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(12)))
    model.compile(backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    clock = OwnClock()
    clock.train(model, optimizer, ([x, y] for _ in range(600)))
    clock.done()
