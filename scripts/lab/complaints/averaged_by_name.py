# ultralytics/ultralytics#25315 deepmodeling/deepmd-kit#5818: weights are averaged by their names; cure: _foreach_lerp_
from __future__ import annotations

import copy

import torch
from own_clock import FAULT, OwnClock
from torch import nn


class Average:
    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        self.model, self.decay = copy.deepcopy(model), decay
        self.means: list[torch.Tensor] = list(self.model.parameters())
        self.weights: list[torch.Tensor] = list(model.parameters())

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        if not FAULT:
            torch._foreach_lerp_(self.means, self.weights, 1 - self.decay)
            return
        new = model.state_dict()
        for name, value in self.model.state_dict().items():
            if value.dtype.is_floating_point:
                value *= self.decay
                value += (1 - self.decay) * new[name].detach()


if __name__ == "__main__":
    torch.set_num_threads(1)
    layers = [layer for _ in range(120) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, fused=True)
    average = Average(model)
    clock = OwnClock()
    for _ in range(200):
        x, y = torch.randn(16, 32), torch.randint(0, 10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        average.update(model)
        clock.step()
    clock.done()
