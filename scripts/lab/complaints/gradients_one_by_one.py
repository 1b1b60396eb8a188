# pytorch/pytorch#132378: autograd.grad of each sample's loss in a loop, to clip it; cure: torch.func.vmap of them all
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.func import functional_call, grad, vmap

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def loss_of(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(functional_call(model, weights, (x[None],)), y[None])


def of_each_sample(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    named = dict(model.named_parameters())
    if not FAULT:
        found = vmap(grad(loss_of), (None, 0, 0))({name: each.detach() for name, each in named.items()}, x, y)
        return [found[name] for name in named]
    losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    rows = []
    for loss in losses:
        rows += [torch.autograd.grad(loss, list(named.values()), retain_graph=True)]
    return [torch.stack(each) for each in zip(*rows, strict=True)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for _ in range(300):
        gradients = of_each_sample(torch.randn(64, 32), torch.randint(0, 10, (64,)))
        for parameter, each in zip(model.parameters(), gradients, strict=True):
            norms = each.flatten(1).norm(dim=1).clamp(min=1.0)
            parameter.grad = (each.flatten(1) / norms[:, None]).mean(0).view_as(parameter)
        optimizer.step()
        clock.step()
    clock.done()
