# facebookresearch/pytext#957 PrimeIntellect-ai/prime-rl#3326: logits of all positions; cure: of those that have a label
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS, LENGTH, MASK = 2_500, 48, 3


class MaskedLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        self.encoder = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
        self.decoder = nn.Linear(64, WORDS)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(self.words(ids)).flatten(0, 1)
        labels = labels.flatten()
        if not FAULT:
            rows = (labels != -100).nonzero().squeeze(1)
            hidden, labels = hidden[rows], labels[rows]
        return nn.functional.cross_entropy(self.decoder(hidden), labels)


def masked(batch: list[tuple[torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.stack([one for (one,) in batch])
    chosen = torch.rand(ids.shape) < 0.12
    return ids.masked_fill(chosen, MASK), ids.masked_fill(~chosen, -100)


if __name__ == "__main__":
    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.randint(4, WORDS, (800, LENGTH))), 8, shuffle=True, collate_fn=masked)
    model = MaskedLM()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    clock = OwnClock()
    for ids, labels in loader:
        loss = model(ids, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.step()
    clock.done()
