# ritheshkumar95/pytorch-vqvae#15: the nearest code by differences of all pairs; cure: a product of matrices
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn

CODES, WIDTH, STEPS = 512, 48, 40


class Quantizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(0.1 * torch.randn(CODES, WIDTH))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if FAULT:
            far = (x[:, None] - self.codes[None]).pow(2).sum(-1)
        else:
            far = self.codes.pow(2).sum(1) - 2 * x @ self.codes.t()
        chosen = self.codes[far.argmin(1)]
        loss = (chosen - x.detach()).pow(2).mean() + 0.25 * (x - chosen.detach()).pow(2).mean()
        return x + (chosen - x).detach(), loss


if __name__ == "__main__":
    torch.set_num_threads(1)
    images = torch.rand(4_000, 64)
    encoder, quantizer, decoder = nn.Linear(64, WIDTH), Quantizer(), nn.Linear(WIDTH, 64)
    model = nn.ModuleList([encoder, quantizer, decoder])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    clock = OwnClock()
    for _ in range(STEPS):
        x = images[torch.randint(0, 4_000, (256,))]
        quantized, loss = quantizer(encoder(x))
        optimizer.zero_grad()
        (loss + (decoder(quantized) - x).pow(2).mean()).backward()
        optimizer.step()
        clock.step()
    clock.done()
