# junyanz/pytorch-CycleGAN-and-pix2pix#916 yunjey/pytorch-tutorial#56: fakes keep their graph for D; cure: detach()
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn


def network(first: int, last: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(first, 384),
        nn.ReLU(),
        nn.Linear(384, 384),
        nn.ReLU(),
        nn.Linear(384, 384),
        nn.ReLU(),
        nn.Linear(384, last),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator, critic = network(64, 256), network(256, 1)
    of_g = torch.optim.Adam(generator.parameters(), 1e-4, fused=True)
    of_d = torch.optim.Adam(critic.parameters(), 1e-4, fused=True)
    loss = nn.BCEWithLogitsLoss()
    real, ones, zeros = torch.randn(256, 256), torch.ones(256, 1), torch.zeros(256, 1)
    clock = OwnClock()
    for _ in range(150):
        fake = generator(torch.randn(256, 64))
        critic.requires_grad_(True)
        of_d.zero_grad()
        (loss(critic(real), ones) + loss(critic(fake if FAULT else fake.detach()), zeros)).backward(retain_graph=FAULT)
        of_d.step()
        of_g.zero_grad()
        critic.requires_grad_(FAULT)
        loss(critic(fake), ones).backward()
        of_g.step()
        clock.step()
    clock.done()
