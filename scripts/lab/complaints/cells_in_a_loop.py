# dr-costas/SEDLM#1 pytorch/pytorch#4275: a recurrent network as a loop over cells; cure: the fused nn.LSTM
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.fused, self.head = nn.LSTMCell(16, 32), nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not FAULT:
            return self.head(self.fused(x)[0][:, -1])  # type: ignore[no-any-return]
        h = c = x.new_zeros(len(x), 32)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h)  # type: ignore[no-any-return]


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = DataLoader(TensorDataset(torch.randn(6144, 100, 16), torch.randint(0, 10, (6144,))), batch_size=16)
    clock = OwnClock()
    clock.train(model, optimizer, loader)
    clock.done()
