# pytorch/pytorch#7714 brownvc/R3GAN#9: a gradient penalty in each step; cure: lazily, in every 16th step
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn


def penalty(critic: nn.Module, real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    mix = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)
    lengths: torch.Tensor = gradient.norm(dim=1)
    return 10 * (lengths - 1).square().mean()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    critic = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(384, 384), nn.Tanh())], nn.Linear(384, 1))
    optimizer = torch.optim.Adam(critic.parameters(), 1e-4, fused=True)
    real, fake = torch.randn(256, 384), torch.randn(256, 384)
    clock = OwnClock()
    for step in range(150):
        optimizer.zero_grad()
        loss = critic(fake).mean() - critic(real).mean()
        if FAULT or step % 16 == 0:
            loss = loss + penalty(critic, real, fake)
        loss.backward()
        optimizer.step()
        clock.step()
    clock.done()
