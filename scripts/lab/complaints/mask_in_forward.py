# Tencent-Hunyuan/HunyuanVideo#208: a mask is filled by a loop in every forward; cure: one buffer of the mask
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LENGTH = 128


def strided(length: int) -> torch.Tensor:
    mask = torch.zeros(length, length)
    for row in range(length):
        for column in range(row + 1, length):
            if column % 4 == 0:
                mask[row, column] = float("-inf")
    return mask


class Attention(nn.Module):
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project, self.classify = nn.Linear(32, 96), nn.Linear(32, 10)
        self.register_buffer("mask", strided(LENGTH), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = strided(x.shape[1]) if FAULT else self.mask
        q, k, v = self.project(x).chunk(3, -1)
        out: torch.Tensor = self.classify(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).mean(1))
        return out


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(1200, LENGTH, 32), torch.randint(0, 10, (1200,)))
    clock = OwnClock()
    clock.train(model, optimizer, DataLoader(data, batch_size=8))
    clock.done()
