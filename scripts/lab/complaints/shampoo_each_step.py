# kozistr/pytorch_optimizer#100: Shampoo takes roots of its matrices in each step; cure: in each 25th
from __future__ import annotations

from typing import Any

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def inverse_root(matrix: torch.Tensor, power: int) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    root: torch.Tensor = vectors * values.clamp_min(1e-6).pow(-1 / power) @ vectors.T
    return root


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr: float = 1e-2, momentum: float = 0.9, update_freq: int = 1) -> None:  # type: ignore[no-untyped-def]
        super().__init__(params, {"lr": lr, "momentum": momentum, "update_freq": update_freq})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                grad, state = p.grad, self.state[p]
                if not state:
                    state["step"], state["momentum"] = 0, torch.zeros_like(p)
                    for dim, size in enumerate(p.shape):
                        state[f"precond_{dim}"] = 1e-4 * torch.eye(size)
                        state[f"inv_{dim}"] = torch.eye(size)
                for dim, size in enumerate(p.shape):
                    rows = grad.transpose(0, dim).reshape(size, -1)
                    state[f"precond_{dim}"] += rows @ rows.T
                    if state["step"] % group["update_freq"] == 0:
                        state[f"inv_{dim}"] = inverse_root(state[f"precond_{dim}"], 2 * p.ndim)
                    grad = (state[f"inv_{dim}"] @ rows).reshape(grad.transpose(0, dim).shape).transpose(0, dim)
                state["step"] += 1
                state["momentum"].mul_(group["momentum"]).add_(grad)
                p.add_(state["momentum"], alpha=-group["lr"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = Shampoo(model.parameters(), update_freq=1 if FAULT else 25)
    loader = DataLoader(TensorDataset(torch.randn(6400, 96), torch.randint(0, 10, (6400,))), batch_size=64)
    clock = OwnClock()
    clock.train(model, optimizer, loader)
    clock.done()
